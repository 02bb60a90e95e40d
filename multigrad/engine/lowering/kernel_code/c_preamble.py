"""What a C file of kernels begins with: types, packed masks, reductions of a chunk."""

from __future__ import annotations

from .kernels import COMPUTED, check_dtype

# By dtype: its type in memory, and the type in which it is computed.
STORED = {"float32": "float", "float64": "double", "bfloat16": "uint16_t", "float16": "_Float16"}
TYPES = {"float32": "float", "float64": "double"}
BEGIN = """\
#define _DEFAULT_SOURCE
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#define CHUNK 1024
#define LARGE (4 << 20)
#define CLIP(x, low, high) ((x) < (low) ? MIN(low, high) : MIN(x, high))
#define MIN(x, high) ((x) > (high) ? (high) : (x))
#define LANES 16

// New memory comes in pages; to fetch 4 KB at a time takes longer than to compute what they hold.
static void ask_for_large_pages(void *memory, size_t bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t first = ((uintptr_t)memory + 4095) & ~(uintptr_t)4095;
    if (bytes >= LARGE) madvise((void *)first, bytes - (first - (uintptr_t)memory), MADV_HUGEPAGE);
#endif
}

static inline void unpack(uint8_t *restrict mask, const uint8_t *restrict bits, int64_t n) {
    for (int64_t i = 0; 8 * i < n; i++) {
        uint64_t spread = (bits[i] * 0x0101010101010101u) & 0x0102040810204080u;
        spread = ((spread + 0x7f7f7f7f7f7f7f7fu) >> 7) & 0x0101010101010101u;
        memcpy(mask + 8 * i, &spread, 8);
    }
}

static inline void pack(uint8_t *restrict bits, const uint8_t *restrict mask, int64_t n) {
    for (int64_t i = 0; 8 * i < n; i++) {
        uint64_t bytes;
        memcpy(&bytes, mask + 8 * i, 8);
        bits[i] = (bytes * 0x8040201008040201u) >> 56;
    }
}
"""
# The functions that reduce a chunk, and macros with their names that join two numbers.
TOTALS = """
#define JOIN_sum(a, b) ((a) + (b))
#define JOIN_squares JOIN_sum
#define JOIN_largest(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define JOIN_smallest(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define ADD_sum JOIN_sum
#define ADD_squares(a, b) ((a) + (b) * (b))
#define ADD_largest JOIN_largest
#define ADD_smallest JOIN_smallest
#define FIRST_sum 0
#define FIRST_squares 0
#define FIRST_largest -INFINITY
#define FIRST_smallest INFINITY
#define REDUCTION(name) \\
    static double name##_in_pairs(double *x, int64_t n) { \\
        for (int64_t half; n > 1; n = half) { \\
            half = (n + 1) / 2; \\
            for (int64_t i = half; i < n; i++) x[i - half] = JOIN_##name(x[i - half], x[i]); \\
        } \\
        return x[0]; \\
    } \\
    static double name(const R *x, int64_t n) { \\
        double lanes[LANES]; \\
        int64_t i = 0; \\
        for (int l = 0; l < LANES; l++) lanes[l] = FIRST_##name; \\
        for (; i + LANES <= n; i += LANES) \\
            for (int l = 0; l < LANES; l++) lanes[l] = ADD_##name(lanes[l], (double)x[i + l]); \\
        for (int half = LANES / 2; half; half /= 2) \\
            for (int l = 0; l < half; l++) lanes[l] = JOIN_##name(lanes[l], lanes[l + half]); \\
        double rest = FIRST_##name; \\
        for (; i < n; i++) rest = ADD_##name(rest, (double)x[i]); \\
        return JOIN_##name(lanes[0], rest); \\
    }
REDUCTION(sum)
REDUCTION(squares)
REDUCTION(largest)
REDUCTION(smallest)

static void sum_rows(double *x, int64_t n, int64_t columns) {
    for (int64_t half; n > 1; n = half) {
        half = (n + 1) / 2;
        for (int64_t i = half * columns; i < n * columns; i++) x[i - half * columns] += x[i];
    }
}
"""
WIDTHS = {"float": "f", "double": ""}
FUNCTIONS = "fabs sqrt floor ceil trunc rint copysign fma fmod exp pow"
AS_IT_IS = """
static inline R load(S x) { return x; }
static inline S store(R x) { return x; }
"""
BFLOAT16 = """
static inline R load(S x) {
    uint32_t bits = (uint32_t)x << 16;
    R value;
    memcpy(&value, &bits, 4);
    return value;
}
static inline S store(R x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return x != x ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
"""
# With the sign of the divisor; that of C's fmod is the dividend's.
REMAINDER = """
static inline R remainder_of(R x, R divisor) {
    const R found = FMOD(x, divisor);
    return found != 0 && (divisor < 0) != (found < 0) ? found + divisor : found;
}
"""


def begin(dtype: str) -> str:
    """Return the beginning of a file of kernels; raise CannotFuseError for a dtype without any."""
    check_dtype(dtype)
    number_type = TYPES[COMPUTED[dtype]]
    suffix = WIDTHS[number_type]
    macros = [f"#define {word.upper()} {word}{suffix}\n" for word in FUNCTIONS.split()]
    types = f"typedef {number_type} R;\ntypedef {STORED[dtype]} S;\n"
    stores = BFLOAT16 if dtype == "bfloat16" else AS_IT_IS
    return "".join((BEGIN, *macros, types, REMAINDER, TOTALS, stores))
