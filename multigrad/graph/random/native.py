"""Random draws by compiled C code, if there is a compiler: the same bits as the plain code.

C draws uniforms in one pass. A normal, sqrt(2) erfinv(x) of a uniform x in (-1, 1), takes three, as
C's logarithm and root may have other bits than those of NumPy and torch, which plain code calls:

    begin_normal    out = x, w = -x x                             (float64: w = (1 - x) (1 + x))
    take_roots      w = -log1p(w), roots = sqrt(w)                (float64: w = -log(w))
    finish_normal   out = sqrt(2) out ratio(w, roots)             the polynomials of `erfinv`

`find_kernels` returns the functions, once there is a library. In this file: the functions as Python
calls them, NumPy's draws by them, the C source, and the library.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..support.c_libraries import CLibrary, NoLibraryError
from . import draws
from .draws import (
    ERFINV_FLOAT32,
    ERFINV_FLOAT64,
    PARITY,
    ROTATIONS,
    UNIFORM_FIELDS,
    WORD_MASK,
    PlacedKey,
    find_runs,
)

Array: TypeAlias = np.ndarray[Any, Any]
Table: TypeAlias = tuple[tuple[float, float, tuple[float, ...]], ...]

CHUNK = 1024  # counters that C encrypts at a time: their words stay in a first-level cache
BLOCK = 1 << 14  # elements of one `take_roots` of NumPy: they stay in a second-level cache
# The work after which the compiler starts, which takes 0.3 s of another core: this many elements
# (50 ms of draws), to which each call adds a cost of its own, in elements.
PAYS_FROM = 5_000_000
COST_OF_CALL = 5_000


# --- the compiled functions -----------------------------------------------------------------------
ADDRESS, COUNT, WORD = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint32
DRAWN = (WORD, WORD, ADDRESS, COUNT, COUNT, COUNT)  # the macro DRAWN of the C source
FUNCTIONS = {
    "uniform_float": (*DRAWN, ctypes.c_int, WORD, ctypes.c_float, ADDRESS),
    "uniform_double": (*DRAWN, ADDRESS),
    "begin_normal_float": (*DRAWN, ADDRESS, ADDRESS),
    "begin_normal_double": (*DRAWN, ADDRESS, ADDRESS),
    "finish_normal_float": (COUNT, ADDRESS, ADDRESS, ADDRESS),
    "finish_normal_double": (COUNT, ADDRESS, ADDRESS, ADDRESS),
}


def address_of(array: Array) -> int:
    return array.__array_interface__["data"][0]


FROM_ZERO = np.zeros(1, np.uint64)  # the counters of a whole array: one run, from 0 on
FROM_ZERO_ADDRESS = address_of(FROM_ZERO)


class DrawLayout(NamedTuple):
    """A key's two words and the counters of a draw: runs of one length from `firsts` on."""

    first: int
    second: int
    # The address points into `firsts`, uint64, which the tuple keeps alive.
    address: int
    length: int
    firsts: Array


def lay_out_runs(key: Any, shape: Sequence[int]) -> DrawLayout:
    if isinstance(key, PlacedKey):
        firsts, length = find_runs(key, tuple(shape))
        first, second = key.key
        return DrawLayout(int(first), int(second), address_of(firsts), length, firsts)
    first, second = key
    return DrawLayout(int(first), int(second), FROM_ZERO_ADDRESS, math.prod(shape), FROM_ZERO)


class DrawKernels:
    """The functions of the library, with their types of arguments."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, arguments in FUNCTIONS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None
        self.library = library
        self.uniform_float, self.uniform_double = library.uniform_float, library.uniform_double
        # By `double`: the first and the last pass, and the size of an element.
        self.normals = (
            (library.begin_normal_float, library.finish_normal_float, 4),
            (library.begin_normal_double, library.finish_normal_double, 8),
        )

    def uniform(self, out: int, layout: DrawLayout, start: int, count: int, dtype: str) -> None:
        """Write the elements of a draw from `start` on to an address, in float64 or float32.

        Args:
            dtype: for which the bits are drawn; one of 16 bits is written in float32.
        """
        layout_args = (*layout[:4], start, count)
        if dtype == "float64":
            self.uniform_double(*layout_args, out)
            return
        shift, width = UNIFORM_FIELDS[dtype]
        self.uniform_float(*layout_args, shift, (1 << width) - 1, 2.0**-width, out)

    def normal(
        self,
        out: int,
        layout: DrawLayout,
        start: int,
        count: int,
        *,
        double: bool,
        block: int,
        scratch: Any,
    ) -> None:
        """Write normals to an address, in float64 (`double`) or float32.

        Args:
            block: elements at a time.
            scratch: has the `addresses` of w and the roots of a block, and `take_roots(number)`,
                the second pass over as many elements.
        """
        begin, finish, itemsize = self.normals[double]
        w, roots = scratch.addresses
        for offset in range(0, count, block):
            number, address = min(block, count - offset), out + offset * itemsize
            begin(*layout[:4], start + offset, number, address, w)
            scratch.take_roots(number)
            finish(number, address, w, roots)


# --- NumPy's draws by them ------------------------------------------------------------------------
class NumPyScratch:
    """The scratch memory of NumPy's normals."""

    def __init__(self, size: int, wide: str) -> None:
        self.rows = np.empty((2, size), wide)
        self.log = np.log if wide == "float64" else np.log1p
        self.addresses = address_of(self.rows[0]), address_of(self.rows[1])

    def take_roots(self, number: int) -> None:
        w, roots = self.rows[:, :number]
        np.negative(self.log(w, w), w)
        np.sqrt(w, roots)


def compiled_uniform(kernels: DrawKernels, key: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    draw = np.empty(shape, dtype)
    layout, name = lay_out_runs(key, shape), name_of(draw.dtype)

    def fill(out: int, start: int, count: int) -> None:
        kernels.uniform(out, layout, start, count, name)

    fill_wide(draw, "float64" if name == "float64" else "float32", fill)
    return draw


def compiled_normal(kernels: DrawKernels, key: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    draw = np.empty(shape, dtype)
    double = name_of(draw.dtype) == "float64"
    work_dtype = "float64" if double else "float32"
    layout = lay_out_runs(key, shape)
    scratch = NumPyScratch(min(draw.size, BLOCK), work_dtype)

    def fill(out: int, start: int, count: int) -> None:
        kernels.normal(out, layout, start, count, double=double, block=BLOCK, scratch=scratch)

    fill_wide(draw, work_dtype, fill)
    return draw


def fill_wide(draw: Array, wide: str, fill: Callable[[int, int, int], None]) -> None:
    """Fill an array by `fill(address, start, count)`, block by block if its dtype is narrower."""
    if name_of(draw.dtype) == wide:
        fill(address_of(draw), 0, draw.size)
        return
    flat = draw.reshape(-1)
    block = np.empty(min(draw.size, BLOCK), wide)
    for start, stop in draws.cut(draw.size, BLOCK):
        fill(address_of(block), start, stop - start)
        flat[start:stop] = block[: stop - start]


# NumPy takes longer for the name of a dtype than for a small array.
@functools.lru_cache(64)
def name_of(dtype: Any) -> str:
    return dtype.name


# --- the C source ---------------------------------------------------------------------------------
COUNTERS = """\
#include <stdint.h>

typedef uint32_t word;

/* A key, runs of counters that follow one another, and which of their elements to draw. */
#define DRAWN word first, word second, const uint64_t *firsts, int64_t length, int64_t start, \\
              int64_t count

static inline word rotate(word x, int bits) { return x << bits | x >> (32 - bits); }

static void count_elements(const uint64_t *firsts, int64_t length, int64_t start, int64_t count,
                           word *high, word *low)
{
    int64_t run = start / length, along = start % length;
    while (count > 0) {
        uint64_t counter = firsts[run] + (uint64_t)along;
        int64_t same = (int64_t)(((uint64_t)1 << 32) - (counter & 0xffffffffu));
        int64_t number = length - along < count ? length - along : count;
        if (same < number) number = same;
        for (int64_t i = 0; i < number; i++) {
            high[i] = (word)(counter >> 32);
            low[i] = (word)counter + (word)i;
        }
        high += number, low += number, count -= number, along += number;
        if (along == length) along = 0, run++;
    }
}
"""

ENCRYPT = """
static void encrypt(word first, word second, int64_t count, word *restrict high, word *restrict low)
{{
    word third = first ^ second ^ {parity:#x}u;
    for (int64_t i = 0; i < count; i++) {{
        word x = high[i], y = low[i];
        {rounds}
        high[i] = x, low[i] = y;
    }}
}}
"""

DRAWS = """
#define DRAW(statements)                                                        \\
    word high[{chunk}], low[{chunk}];                                           \\
    for (int64_t done = 0; done < count; done += {chunk}) {{                    \\
        int64_t number = count - done < {chunk} ? count - done : {chunk};       \\
        count_elements(firsts, length, start + done, number, high, low);        \\
        encrypt(first, second, number, high, low);                              \\
        for (int64_t i = 0; i < number; i++) {{ statements }}                   \\
    }}

#define FLOAT(dropped, mask, scale) \\
    ((float)(int32_t)((high[i] ^ low[i]) >> (dropped) & (mask)) * (scale))
#define DOUBLE (((double)high[i] * 0x1p20 + (double)(low[i] >> 12)) * 0x1p-52)

void uniform_float(DRAWN, int dropped, word mask, float scale, float *restrict out)
{{
    DRAW(out[done + i] = FLOAT(dropped, mask, scale);)
}}

void uniform_double(DRAWN, double *restrict out)
{{
    DRAW(out[done + i] = DOUBLE;)
}}

void begin_normal_float(DRAWN, float *restrict out, float *restrict w)
{{
    DRAW(float x = FLOAT(9, 0x7fffffu, 0x1p-23f);
         x += x;
         x += -1.0f + 0x1p-24f;
         out[done + i] = x;
         w[done + i] = -(x * x);)
}}

void begin_normal_double(DRAWN, double *restrict out, double *restrict w)
{{
    DRAW(double x = DOUBLE;
         x += x;
         x += -1.0 + 0x1p-53;
         out[done + i] = x;
         w[done + i] = (1.0 - x) * (1.0 + x);)
}}
"""

FINISH_NORMAL = """
void finish_normal_{real}(int64_t count, {real} *restrict out, const {real} *restrict ws,
                          const {real} *restrict roots)
{{
    for (int64_t i = 0; i < count; i++) {{
        {real} w = ws[i], root = roots[i];
        {polynomials}
        out[i] = ratio * out[i] * ({real}){scale!r};
    }}
}}
"""


def write_source() -> str:
    """Return the library: counters, their encryption, draws of them, and the rest of normals."""
    rounds = "\n        ".join(write_rounds())
    return (
        COUNTERS
        + ENCRYPT.format(parity=PARITY, rounds=rounds)
        + DRAWS.format(chunk=CHUNK)
        + write_finish_normal("float", ERFINV_FLOAT32)
        + write_finish_normal("double", ERFINV_FLOAT64)
    )


def write_rounds() -> Iterator[str]:
    """Yield the C statements of `threefry_rounds`."""
    schedule = ("first", "second", "third")
    for group, rotations in enumerate(ROTATIONS):
        yield f"x += {schedule[group % 3]}, y += {schedule[(group + 1) % 3]} + {group}u;"
        for bits in rotations:
            yield f"x += y, y = rotate(y, {bits}) ^ x;"
    yield "x += third, y += first + 5u;"


def write_finish_normal(real: str, table: Table) -> str:
    """Return C code for what `erfinv` does after logarithm and root, and for the scale."""
    polynomials = "\n        ".join(write_polynomials(real, table))
    return FINISH_NORMAL.format(real=real, polynomials=polynomials, scale=2.0**0.5)


def write_polynomials(real: str, table: Table) -> Iterator[str]:
    """Yield C statements that evaluate the polynomials and choose one of them."""
    for row, (start, center, (first, *rest)) in enumerate(table):
        name, x = (f"tail_{row}", "root") if row else ("ratio", "w")
        yield f"{real} x_{row} = {x} - ({real}){center!r}, {name} = x_{row} * ({real}){first!r};"
        for place, coefficient in enumerate(rest):
            multiply = f"{name} *= x_{row}, " if place else ""
            yield f"{multiply}{name} += ({real}){coefficient!r};"
        if row:
            yield f"ratio = w < ({real}){start!r} ? ratio : {name};"


# --- the library ----------------------------------------------------------------------------------
def bind(library: ctypes.CDLL) -> DrawKernels:
    """Return a library's functions, or raise NoLibraryError if their bits are not plain code's."""
    kernels = DrawKernels(library)
    # The part crosses a multiple of 2**32, and the end of a chunk.
    part = PlacedKey((WORD_MASK, 7), (1 << 32) - CHUNK, (4, CHUNK + 9))
    for key, shape in (((0, 7), (3,)), (part, (2, CHUNK + 5))):
        for dtype in ("float32", "float64"):
            for plain, compiled in COMPILED.items():
                expected = plain(key, shape, dtype)
                if compiled(kernels, key, shape, dtype).tobytes() != expected.tobytes():
                    raise NoLibraryError(f"{library._name} draws other numbers than plain code")
    return kernels


LIBRARY = CLibrary("draws", write_source, bind, PAYS_FROM)
COMPILED = {draws.uniform: compiled_uniform, draws.normal: compiled_normal}


def find_kernels(size: int) -> DrawKernels | None:
    """Return the compiled functions, or None where plain code draws this many elements."""
    return LIBRARY.get(size + COST_OF_CALL)


def uniform(key: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    return _draw(draws.uniform, key, shape, dtype)


def normal(key: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    return _draw(draws.normal, key, shape, dtype)


def _draw(plain: Callable[..., Array], key: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    dtype = np.dtype(dtype)
    draws.check_dtype(name_of(dtype))
    kernels = find_kernels(math.prod(shape))
    if kernels is None:
        return plain(key, shape, dtype)
    return COMPILED[plain](kernels, key, shape, dtype)
