"""Sliders for the params of a rule: from the default down to an eighth and up to four times of it,
within its range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from multigrad.graph.support.params import Range

LEAST = 1e-6  # a default below it guards a division
MOST_WHOLE = 12  # graphs of a rule with an integer
ANY = Range.read("finite")


@dataclass(frozen=True, slots=True)
class Slider:
    """A number of a rule: where it starts, its ends, and the text of its range."""

    name: str
    value: float
    low: float
    high: float
    is_whole: bool
    range: str


def make_sliders(params: Mapping[str, Any], ranges: Mapping[str, Range]) -> tuple[Slider, ...]:
    """Return a slider for each param that is a number: floats, and integers that have a range."""
    found = []
    for name, value in params.items():
        is_whole = type(value) is int
        if (
            type(value) not in (float, int)
            or not math.isfinite(value)
            or (is_whole and name not in ranges)
        ):
            continue
        if 0.0 < abs(value) < LEAST:
            continue
        allowed = ranges.get(name, ANY)
        low, high = choose_ends(value, allowed, params)
        if is_whole:
            low, high = math.ceil(low), math.floor(max(high, low + 1))
            high = min(high, low + MOST_WHOLE - 1)
        text = allowed.text if name in ranges else ""
        ends = {"low": low, "high": high}
        found.append(Slider(name, value, **ends, is_whole=is_whole, range=text))
    return tuple(found)


def choose_ends(value: float, allowed: Range, params: Mapping[str, Any]) -> tuple[float, float]:
    """Return the ends of a slider, both in the range."""
    size = abs(value)
    if value > 0 and allowed.low >= 0.0:
        low, high = max(allowed.low, value / 8), min(allowed.high, 4 * value)
    else:
        low, high = max(allowed.low, -4 * size or -2.0), min(allowed.high, 4 * size or 2.0)
    others = {name: other for name, other in params.items() if name not in allowed.others}
    # An end that does not belong to the range itself: "> 1".
    low = low if allowed.holds(low, others) else low + 0.02 * (value - low)
    return low, high if allowed.holds(high, others) else high - 0.02 * (high - value)
