"""Where vectors are taken: edges of the range, thresholds and neighbors, ordinary numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from .rounding import Format

COTANGENTS = (1.25, -0.75, 1.5, 0.625, -1.875, 0.8125, 1.0625, -1.375, 0.5625, -1.125)
ORDINARY = 0.1, 0.4, 0.7, 0.85, 1.3, 1.7, 2.6, 0.011, 4.4, 5.3, 7.3, 12.5, 15.0, 27.0
# Where libraries have been seen to err most.
HARD = 7.0, 18.0, 19.0, 0.023643249400513433
MARKS = (0.25, 0.5, 1.0, 2.0, 3.0, 6.0, 8.0, 10.0, 20.0)


def fit(numbers: Iterable[float], format: Format) -> list[float]:
    """Return the numbers of the dtype that are nearest, each once."""
    with np.errstate(over="ignore"):
        rounded = np.array(list(numbers), np.float64).astype(format.dtype).astype(np.float64)
    seen = {number.hex(): number for number in map(float, rounded)}
    return list(seen.values())


def around(marks: Sequence[float], format: Format) -> list[float]:
    """Return marks and their neighbors."""
    at = np.array(marks, np.float64).astype(format.dtype)
    beside = [np.nextafter(at, np.array(end, format.dtype)) for end in (-np.inf, np.inf)]
    return [float(number) for number in np.concatenate([at, *beside])]


def extremes(format: Format) -> list[float]:
    """Return zeros and what is at the ends of the range, of both signs, and NaN."""
    least = math.ldexp(1.0, format.least)
    positive = [0.0, least, format.smallest_normal - least, format.smallest_normal, format.top]
    return [*positive, math.inf, *(-number for number in positive), -math.inf, math.nan]


def of_one_operand(format: Format, thresholds: Sequence[float] = ()) -> list[float]:
    marks = [m for m in (*MARKS, *thresholds) if math.isfinite(m)]
    root = math.sqrt(format.top)  # near which squares and their squares overflow
    far = (1e-3, 88.5, 1e4, root / 16, root * 64)
    positive = [*around(marks, format), *far, *ORDINARY, *HARD]
    negative = [-number for number in positive]
    return fit([*extremes(format), *positive, *negative], format)


def of_two_operands(format: Format) -> list[tuple[float, float]]:
    """Return pairs of finite numbers and NaN; equal ones, and neighbors."""
    least = math.ldexp(1.0, format.least)
    values = [0.0, -0.0, 1.0, -1.0, 0.3, -2.6, 2.0, 7.0, format.top, format.smallest_normal]
    values = fit([*values, -least, math.nan], format)
    near = [n for n in around([1.0], format) if n != 1.0]
    pairs = [*itertools.product(values, values), *((1.0, n) for n in near)]
    return [*pairs, *((n, 1.0) for n in near)]


def of_three_operands(format: Format, *, is_choice: bool) -> list[tuple[float, float, float]]:
    """Return triples of finite numbers, equal ones among them, and of those whose squares overflow
    or underflow; the first may be a condition.
    """
    ordinary = fit([0.0, 0.3, -2.6, 1.0, 2.0, 7.0], format)
    far = (format.top / 4, -math.sqrt(format.top) * 64, math.sqrt(format.smallest_normal) / 64)
    extremes = fit([0.0, 1.0, *far, format.smallest_normal], format)
    rows = [*itertools.product(ordinary, ordinary, ordinary)]
    rows += itertools.product(extremes, extremes, extremes)
    return [*dict.fromkeys(row for row in rows if not is_choice or row[0] in (0.0, 1.0))]


def cotangents(count: int) -> list[float]:
    """Return numbers near one of both signs, that every dtype has."""
    return list(itertools.islice(itertools.cycle(COTANGENTS), count))
