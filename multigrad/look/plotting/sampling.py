"""Points of a curve: more of them where it is steep, a break where it jumps, and a window.

A jump is closed in on until its sides are one place on any screen, so that no edge is smeared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = Any
Formula = Callable[[Array], Array]
POINTS = 401  # odd: zero is among them
STEEP = 0.01  # of the curve's height, between neighbors
CLOSE = 1e-9  # of the window's width: no picture shows less
MOST = 20_000
ROUNDING = 1e-12  # a height below that part of the values is none
WINDOWS = (0.2, 0.5, 2.0, 4.0, 8.0, 16.0, 32.0)
USUAL, WIDE = 2.0, 8.0


class Points(NamedTuple):
    """A curve: at a break, and where it has no finite value, y is NaN."""

    x: Array
    y: Array

    def alone(self) -> Points:
        """Return the points between two breaks: a value that holds at one place."""
        gap = np.concatenate([[True], np.isnan(self.y), [True]])
        is_alone = ~gap[1:-1] & gap[:-2] & gap[2:]
        return Points(self.x[is_alone], self.y[is_alone])


def sample(formula: Formula, x: Array, *, refine: bool = True, steep: float = STEEP) -> Points:
    """Return a curve at the places x, in order, and between them where it is steep or jumps.

    Args:
        steep: the part of the curve's height that is not left to one line between two places.
        refine: False for a formula whose values depend on the other places: x alone is taken.
    """
    y = finite(formula(x))
    while refine and len(x) < MOST:
        middle = np.flatnonzero(is_steep(y, steep) & (np.diff(x) > CLOSE * (x[-1] - x[0])))
        if not len(middle):
            break
        between = 0.5 * (x[middle] + x[middle + 1])
        x = np.insert(x, middle + 1, between)
        y = np.insert(y, middle + 1, finite(formula(between)))
    if not refine:
        return Points(x, y)
    jumps = 1 + np.flatnonzero(is_steep(y, steep) & (np.diff(x) <= CLOSE * (x[-1] - x[0])))
    return Points(np.insert(x, jumps, x[jumps]), np.insert(y, jumps, np.nan))


def finite(y: Array) -> Array:
    """Return y with NaN for infinity."""
    return np.where(np.isfinite(y), y, np.nan)


def is_steep(y: Array, part: float) -> Array:
    """Return between which neighbors a curve has that part of its height."""
    known = y[np.isfinite(y)]
    height = np.ptp(known) if len(known) else 0.0
    height = height if height > ROUNDING * np.abs(known).max(initial=0.0) else 0.0
    gap = np.abs(np.diff(y))
    return (gap > part * height) & (height > 0.0)


def grid(half_width: float = USUAL, points: int = POINTS) -> Array:
    """Return places around zero."""
    return np.linspace(-half_width, half_width, points)


def choose_window(formula: Formula) -> float:
    """Return the half width that shows a curve: most of its ups and downs, and not a needle."""
    sizes = np.geomspace(1e-4, 64.0, 400)
    x = np.concatenate([-sizes[::-1], [0.0], sizes])
    change = np.nan_to_num(np.abs(np.diff(finite(formula(x)))))
    place, total = np.minimum(np.abs(x[:-1]), np.abs(x[1:])), change.sum()
    if total == 0.0:
        return USUAL
    for window in WINDOWS:
        left_out = change[place >= 0.6 * window].sum()
        at_zero = change[place < window / 50].sum()
        # A jump at zero alone looks the same in every window.
        if left_out <= 0.25 * total and (window >= USUAL or at_zero < 0.5 * total):
            return window
    return WIDE  # it goes on for ever
