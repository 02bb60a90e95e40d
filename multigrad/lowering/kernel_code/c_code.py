"""Kernels in C: loops over the elements, in chunks or rows that threads share.

What a reduction gives does not depend on how many threads there are: chunks are of one length, each
is summed by a fixed number of lanes, and what they give in pairs; in double, whatever the dtype.
"""

from __future__ import annotations

from ...graph import ops
from ...graph.ir.op import Op
from .c_passes import REDUCTIONS, TOTALS, write
from .kernels import COMPUTED, INFIX, SAME, Language, check_dtype

# What C keeps besides results is not looked at; and threads, which macOS's clang has not.
FLAGS = ("-fno-trapping-math", "-fopenmp")
# By dtype: how it lies in memory, and how it is computed.
STORED = {"float32": "float", "float64": "double", "bfloat16": "uint16_t", "float16": "_Float16"}
TYPES = {"float32": "float", "float64": "double"}
ROWS: dict[Op, str] = {
    **INFIX,
    **SAME,
    ops.DIV: "{} / {}",
    ops.NEG: "-{}",
    ops.NOT: "!{}",
    ops.ABS: "FABS({})",
    ops.SQUARE: "{0} * {0}",
    ops.SQRT: "SQRT({})",
    ops.RSQRT: "1 / SQRT({})",
    ops.RECIPROCAL: "1 / {}",
    ops.FLOOR: "FLOOR({})",
    ops.CEIL: "CEIL({})",
    ops.TRUNC: "TRUNC({})",
    ops.ROUND: "RINT({})",
    ops.COPYSIGN: "COPYSIGN({}, {})",
    ops.REMAINDER: "remainder_of({}, {})",
    ops.WHERE: "{} ? {} : {}",
    # NaN of either side comes through; of equals, which zeros of two signs are, the second. That is
    # asked for NaN: the first may be such a choice itself, of which GCC then makes no vectors.
    ops.MAXIMUM: "!({0} <= {1}) & ({1} == {1}) ? {0} : {1}",
    ops.MINIMUM: "!({0} >= {1}) & ({1} == {1}) ? {0} : {1}",
    ops.CLIP: "CLIP({}, {}, {})",
    ops.SIGN: "{0} != {0} ? {0} : (R)(({0} > 0) - ({0} < 0))",
    ops.ISNAN: "{0} != {0}",
    ops.ISINF: "FABS({}) == INFINITY",
    ops.ISFINITE: "FABS({}) < INFINITY",
    ops.HEAVISIDE: "(R)({} > 0)",
    ops.RELU: "{0} < 0 ? 0 : {0}",
    ops.RELU6: "CLIP({}, 0, 6)",
    ops.LEAKY_RELU: "{0} > 0 ? {0} : {0} * (R){slope}",
}
BY_NUMBER = {ops.MAXIMUM: "{0} < {1} ? {1} : {0}", ops.MINIMUM: "{0} > {1} ? {1} : {0}"}

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
# With the divisor's sign, which C's has not.
REMAINDER = """
static inline R remainder_of(R x, R divisor) {
    const R found = FMOD(x, divisor);
    return found != 0 && (divisor < 0) != (found < 0) ? found + divisor : found;
}
"""


def begin(dtype: str) -> str:
    """Return the beginning of a file of kernels for a dtype.

    Raises:
        CannotFuseError: there are none.
    """
    check_dtype(dtype)
    computed = TYPES[COMPUTED[dtype]]
    suffix = WIDTHS[computed]
    macros = [f"#define {word.upper()} {word}{suffix}\n" for word in FUNCTIONS.split()]
    types = f"typedef {computed} R;\ntypedef {STORED[dtype]} S;\n"
    stores = BFLOAT16 if dtype == "bfloat16" else AS_IT_IS
    return "".join((BEGIN, *macros, types, REMAINDER, TOTALS, stores))


C = Language(
    ROWS,
    write,
    BY_NUMBER,
    line="const R {} = {};",
    mask_line="const int {} = {};",
    to_number="(R){}",
    rounded="load(store({}))",
    reductions=REDUCTIONS,
)
