"""Kernels in C: a loop over the elements, in chunks that threads share."""

from __future__ import annotations

from ..graph import ops
from ..graph.ir.op import Op
from .c_stages import in_stages
from .kernels import COMPUTED, INFIX, SAME, Language, Parts, check_dtype, indented

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
    ops.WHERE: "{} ? {} : {}",
    # NaN of either side comes through; of equals, which zeros of two signs are, the second.
    ops.MAXIMUM: "({0} > {1} || {0} != {0}) ? {0} : {1}",
    ops.MINIMUM: "({0} < {1} || {0} != {0}) ? {0} : {1}",
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
LIMITS = {ops.MAXIMUM: "{0} < {1} ? {1} : {0}", ops.MINIMUM: "{0} > {1} ? {1} : {0}"}

BEGIN = """\
#define _DEFAULT_SOURCE
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#define CHUNK 1024
#define LARGE (4 << 20)
#define CLIP(x, low, high) ((x) < (low) ? MIN(low, high) : MIN(x, high))
#define MIN(x, high) ((x) > (high) ? (high) : (x))

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


def begin(dtype: str) -> str:
    """Return the beginning of a file of kernels for a dtype.

    Raises:
        CannotFuseError: there are none.
    """
    check_dtype(dtype)
    computed = TYPES[COMPUTED[dtype]]
    suffix = WIDTHS[computed]
    words = ("fabs", "sqrt", "floor", "ceil", "trunc", "rint", "copysign", "fma")
    macros = [f"#define {word.upper()} {word}{suffix}\n" for word in words]
    types = f"typedef {computed} R;\ntypedef {STORED[dtype]} S;\n"
    return "".join((BEGIN, *macros, types, BFLOAT16 if dtype == "bfloat16" else AS_IT_IS))


def write(parts: Parts) -> str:
    """Return a kernel: `name(pointers, numbers, n, threads)`."""
    pointers, before, load, after, store = [], [], [], [], []
    for i, each in enumerate(parts.inputs):
        kind = "uint8_t" if each.is_mask else "S"
        pointers.append(f"const {kind} *restrict a{i} = p[{i}];")
        place = f"a{i}[first + i]"
        if each.is_packed:
            before.append(f"uint8_t m{i}[CHUNK];")
            before.append(f"unpack(m{i}, a{i} + first / 8, m);")
            place = f"m{i}[i]"
        value = f"int {each.value} = {place}" if each.is_mask else f"R {each.value} = load({place})"
        load.append(f"const {value};")
    for j, each in enumerate(parts.results):
        kind = "uint8_t" if each.is_mask else "S"
        pointers.append(f"{kind} *restrict r{j} = p[{len(parts.inputs) + j}];")
        if each.is_packed:
            before.append(f"uint8_t k{j}[CHUNK];")
            store.append(f"k{j}[i] = {each.value};")
            after += [
                f"for (int64_t i = m; i % 8; i++) k{j}[i] = 0;",
                f"pack(r{j} + first / 8, k{j}, m);",
            ]
        else:
            value = each.value if each.is_mask else f"store({each.value})"
            pointers.append(f"ask_for_large_pages(r{j}, n * sizeof *r{j});")
            store.append(f"r{j}[first + i] = {value};")
    numbers = [f"const R s{i} = (R)numbers[{i}];" for i in range(parts.numbers)]
    rounds = "load(store(s{0}))" if parts.dtype in ("bfloat16", "float16") else "s{0}"
    numbers += [f"const R c{i} = {rounds.format(i)};" for i in range(parts.numbers)]
    return f"""
void {parts.name}(void **p, const double *numbers, int64_t n, int32_t threads) {{
{indented(pointers, 4)}{indented(numbers, 4)}\
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t c = 0; c < (n + CHUNK - 1) / CHUNK; c++) {{
        const int64_t first = c * CHUNK, m = n - first < CHUNK ? n - first : CHUNK;
{indented(before, 8)}\
{indented([*in_stages(load, parts.lines, store), *after], 8)}\
    }}
}}
"""


C = Language(
    ROWS, write, LIMITS, line="const R {} = {};", mask_line="const int {} = {};", to_number="(R){}"
)
