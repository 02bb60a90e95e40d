"""A formula as a curve: with its jumps, or as what is random is drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .picture import DRAWS, Curve, Role
from .sampling import STEEP, Points, sample

Array = Any
BAND = (5.0, 95.0)  # the percentiles between which the band of a random formula lies
DOTS = 161
STEEP_MEAN = 0.25  # a jump of a mean of draws; they scatter by a hundredth


def make_curve(
    formula: Callable[[Array], Array],
    x: Array,
    *,
    name: str,
    role: Role = "surrogate",
    group: int | None = None,
    is_random: bool = False,
    refine: bool = True,
) -> Curve:
    """Return a curve; of a random formula the mean of many draws, the band of most, and one draw.

    Args:
        formula: of an array of any shape, each element by itself.
        refine: see `sample`.
    """
    if not is_random:
        return Curve(name, role, sample(formula, x, steep=STEEP, refine=refine), group)
    places = x if len(x) <= DOTS else np.linspace(x[0], x[-1], DOTS)

    def mean(at: Array) -> Array:
        return formula(np.tile(at, (DRAWS, 1))).mean(axis=0)

    points = sample(mean, places, steep=STEEP_MEAN)
    draws = formula(np.tile(points.x, (DRAWS, 1)))
    low, high = np.where(np.isnan(points.y), np.nan, np.percentile(draws, BAND, axis=0))
    dots = Points(places, formula(places))
    return Curve(name, role, points, group, dots=dots, band=(low, high))
