"""The draws of `draws.py` as C, operation for operation: the compiler may reorder none of them.

The logarithm and the root are missing, because every library rounds them differently (torch 2.13,
with MKL, roots too): a caller takes them by its own of what `begin_normal_*` gives, for
`finish_normal_*`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from .keys import PARITY, ROTATIONS
from .normals import ERFINV_FLOAT32, ERFINV_FLOAT64

Table: TypeAlias = tuple[tuple[float, float, tuple[float, ...]], ...]

CHUNK = 1024  # counters at a time: their words stay in a first-level cache

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
    """Write the C source, with the constants of the plain code."""
    rounds = "\n        ".join(write_rounds())
    return (
        COUNTERS
        + ENCRYPT.format(parity=PARITY, rounds=rounds)
        + DRAWS.format(chunk=CHUNK)
        + write_finish_normal("float", ERFINV_FLOAT32)
        + write_finish_normal("double", ERFINV_FLOAT64)
    )


def write_rounds() -> Iterator[str]:
    """Write what `threefry_rounds` does."""
    schedule = ("first", "second", "third")
    for group, rotations in enumerate(ROTATIONS):
        yield f"x += {schedule[group % 3]}, y += {schedule[(group + 1) % 3]} + {group}u;"
        for bits in rotations:
            yield f"x += y, y = rotate(y, {bits}) ^ x;"
    yield "x += third, y += first + 5u;"


def write_finish_normal(real: str, table: Table) -> str:
    """Write what `erfinv` does after logarithm and root, and the scale."""
    polynomials = "\n        ".join(write_polynomials(real, table))
    return FINISH_NORMAL.format(real=real, polynomials=polynomials, scale=2.0**0.5)


def write_polynomials(real: str, table: Table) -> Iterator[str]:
    """Write the choice among polynomials, each as `evaluate_polynomial` has it."""
    for row, (start, center, (first, *rest)) in enumerate(table):
        name, x = (f"tail_{row}", "root") if row else ("ratio", "w")
        yield f"{real} x_{row} = {x} - ({real}){center!r}, {name} = x_{row} * ({real}){first!r};"
        for place, coefficient in enumerate(rest):
            times = f"{name} *= x_{row}, " if place else ""
            yield f"{times}{name} += ({real}){coefficient!r};"
        if row:
            yield f"ratio = w < ({real}){start!r} ? ratio : {name};"
