"""A picture as data, and a formula as a curve: with its jumps, or as what is random is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ...rules.model.rule import Rule
from .behavior import Behavior
from .sampling import STEEP, Points, sample

Array = Any
Over = Literal["input", "gradient", "one", "vector"]
Role = Literal["forward", "derivative", "surrogate", "unchanged"]
DRAWS = 1000  # of a random rule, for its mean and its band


@dataclass(frozen=True, slots=True)
class Curve:
    """One line with its name.

    Attributes:
        points: the line, with breaks.
        group: curves of one number have one color; None: what all are compared with.
        dots: a single draw, of a random rule.
        band: what lies around the line.
    """

    name: str
    role: Role
    points: Points
    group: int | None = None
    dots: Points | None = None
    band: tuple[Array, Array] | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """What is on one pair of axes.

    Attributes:
        over: what its places are: the forward's input; a gradient; a gradient of one element, of a
            rule that looks at all of it; the elements of one gradient.
    """

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    over: Over = "input"

    @property
    def is_vector(self) -> bool:
        """Whether its places are the elements of one gradient."""
        return self.over == "vector"


class Ruled(NamedTuple):
    """A rule with numbers for its params, and what it then does."""

    rule: Rule
    params: Mapping[str, Any]
    behavior: Behavior


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
