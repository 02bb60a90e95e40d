"""Numbers of a dtype as text, and the rounding of a number of any precision to one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from multigrad.engine.functions.documents.format import hex_of

High = Any  # a number of mpmath's
THOUSANDTHS = 1000


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format.

    Attributes:
        digits: of the significand, in bits, with the one before the point.
        least: the exponent of two of the smallest subnormal number.
        top: the largest number.
        decimals: what is computed with, so that a sum of any two numbers is exact.
    """

    name: str
    dtype: Any
    digits: int
    least: int
    top: float
    decimals: int

    @property
    def smallest_normal(self) -> float:
        return math.ldexp(1.0, self.least + self.digits - 1)


def _format(dtype: Any, decimals: int) -> Format:
    info, dtype = ml_dtypes.finfo(dtype), np.dtype(dtype)
    digits = info.nmant + 1
    least = int(math.log2(float(info.smallest_normal))) - info.nmant
    return Format(
        dtype.name, dtype, digits=digits, least=least, top=float(info.max), decimals=decimals
    )


FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        _format(np.float16, 60),
        _format(ml_dtypes.bfloat16, 130),
        _format(np.float32, 130),
        _format(np.float64, 350),
    )
}


@dataclass(frozen=True, slots=True)
class Rounded:
    """A number of a dtype, and how far the exact one is from it.

    Attributes:
        distance: of the exact number from this one, in units of the last place, signed.
        overflowed: the exact number is finite, and beyond the range.
    """

    value: float
    distance: float = 0.0
    overflowed: bool = False


def round_to(exact: High, format: Format) -> Rounded:
    """Round to the nearest number, ties to even, as IEEE 754 does."""
    if not is_finite(exact):
        return Rounded(float(exact))
    sign, significand, exponent, bits = exact._mpf_
    if significand == 0:
        return Rounded(0.0)
    unit = max(exponent + bits - format.digits, format.least)  # the exponent of the last place
    shift = unit - exponent
    if shift <= 0:
        kept, distance = int(significand) << -shift, 0.0
    elif shift > bits + 64:
        kept, distance = 0, 0.0
    else:
        kept, rest, half = int(significand) >> shift, int(significand), 1 << (shift - 1)
        rest -= kept << shift
        up = rest > half or (rest == half and kept & 1)
        kept, rest = (kept + 1, rest - (1 << shift)) if up else (kept, rest)
        fine = max(shift - 40, 0)  # a float has room for so many bits of the rest
        distance = math.ldexp(float(rest >> fine), fine - shift)
    value = math.ldexp(float(kept), unit) if kept.bit_length() + unit <= 1024 else math.inf
    if value > format.top:
        return Rounded(-math.inf if sign else math.inf, 0.0, overflowed=True)
    return Rounded(-value if sign else value, -distance if sign else distance)


def is_near_tie(exact: High, format: Format) -> bool:
    """Whether more digits could round a number to its other neighbor."""
    if not is_finite(exact) or not exact._mpf_[1]:
        return False
    return abs(abs(round_to(exact, format).distance) - 0.5) < 2.0**-36


def is_finite(exact: High) -> bool:
    """Neither infinite nor NaN: mpmath writes those with no significand and an exponent."""
    _, significand, exponent, _ = exact._mpf_
    return bool(significand) or exponent == 0


# --- columns of cases -----------------------------------------------------------------------------
FLAGS = ("kink", "overflow", "nan", "subnormal", "convention")


@dataclass(slots=True)
class Columns:
    """What is written of a set of cases, one entry a case."""

    format: Format
    inputs: list[list[float]]
    cotangents: list[float]
    results: list[Rounded] = field(default_factory=list)
    gradients: list[list[Rounded]] = field(default_factory=list)
    flags: dict[str, list[int]] = field(default_factory=dict)

    def mark(self, flag: str, case: int) -> None:
        marked = self.flags.setdefault(flag, [])
        if case not in marked:
            marked.append(case)

    def to_dict(self, **more: Any) -> dict[str, Any]:
        """Return them as plain data, and the flags that the numbers themselves tell."""
        found = [self.results, *self.gradients] if self.results else self.gradients
        for column in found:
            for i, number in enumerate(column):
                if number.overflowed:
                    self.mark("overflow", i)
                if math.isnan(number.value):
                    self.mark("nan", i)
                if _is_subnormal(number.value, self.format):
                    self.mark("subnormal", i)
        for column_ in (*self.inputs, self.cotangents):
            for i, value in enumerate(column_):
                if math.isnan(value):
                    self.mark("nan", i)
                if _is_subnormal(value, self.format):
                    self.mark("subnormal", i)
        return {
            "dtype": self.format.name,
            **more,
            "inputs": [[hex_of(float(x)) for x in column] for column in self.inputs],
            "cotangents": [hex_of(x) for x in self.cotangents],
            "results": [hex_of(x.value) for x in self.results],
            "result_distances": _distances(self.results),
            "gradients": [[hex_of(x.value) for x in column] for column in self.gradients],
            "gradient_distances": [_distances(column) for column in self.gradients],
            "flags": {flag: sorted(self.flags[flag]) for flag in FLAGS if flag in self.flags},
        }


def _is_subnormal(value: float, format: Format) -> bool:
    return value != 0 and abs(value) < format.smallest_normal


def _distances(column: Sequence[Rounded]) -> list[int] | int:
    """Return a list, or 0 where all are."""
    found = [round(number.distance * THOUSANDTHS) for number in column]
    return found if any(found) else 0
