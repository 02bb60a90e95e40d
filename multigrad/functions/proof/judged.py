"""Which differences between an original and its graph count: all but what rounding decides.

The code that runs is compared to the last digits that both sides have, in the dtype of the call;
the meaning of the graph in float64, from which each other backend is lowered, to half of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .bounded import Bounded, magnitude
from .compare import Difference, Judge, count_ops, eps_of, find_difference, largest_of
from .rounding import COARSEST, Rounding, coarsest, run_in_own_dtype
from .samples import FAR

Array = Any


def differ_from_lowered(
    rounding: Rounding,
    original: Mapping[str, Any],
    lowered: Mapping[str, Any],
    shown: Mapping[str, str],
    *,
    is_free: bool,
    least: float,
    is_in_range: bool,
    is_derived: bool,
) -> Difference | None:
    """Return where results are not those of the code that runs: in the dtype of the call, to its
    last digits but what rounding decides.

    Args:
        is_free: whether the original may compute in a wider dtype than the call's.
        least: how coarsely numbers may be rounded, whatever the dtype.
        is_in_range: only where the original is what the graphs mean in float64.
        is_derived: whether each side derives the gradients in its own way.
    """
    judge = Judge(0, 0.0, half=False)
    wide = rounding.wide
    expected = {name: Bounded(a, magnitude(a)) for name, a in lowered.items() if a is not None}

    def forgive(name: str, found: Array, given: Array, off: Array) -> Array:
        if rounding.sample.label == FAR:  # what overflows on both sides may do so in any order
            off = off & (np.isfinite(as_floats(found)) | np.isfinite(as_floats(given)))
        if is_derived and name.startswith("gradient") and found.shape == given.shape:
            off = rounding.find_other_slopes(found, given, off)
        if name not in wide:  # no meaning to compare with
            # A second derivative that somebody cut off in a class is none that ours must lack.
            if name.startswith("second"):
                return off & (not np.any(given)) & (largest_of(found) > 0)
            if name.startswith("zero"):  # of zeros it is zero, whatever 0 times inf makes of that
                off = off & ~((given == 0) & ~np.isfinite(as_floats(found)))
            apart = Judge(count_ops(rounding.graphs), 0.0, half=True)
            return off & apart.find_off(found, given, largest_of(found))
        meant = np.asarray(wide[name].value)
        if meant.shape != found.shape:
            return off
        # An original that overflows in its own dtype does worse than its graph.
        off = off & ~(np.isfinite(meant) & ~np.isfinite(found.astype(np.float64)))
        if is_in_range:
            off = off & ~find_lost(rounding, name, found)
        if is_free:
            half = Judge(count_ops(rounding.graphs), rounding.eps, half=True)
            off = off & half.find_off(found, meant, wide[name].largest)
        if not off.any():
            return off
        # Neither side may be coarser than the other, but by what the result's own dtype rounds.
        ours = max(rounding.precision_of(name, given), eps_of(given.dtype))
        theirs = max(rounding.precision_of(name, found), eps_of(found.dtype))
        cap = ours if is_free or found.dtype != given.dtype else min(theirs, ours)
        return rounding.unexplained(name, found, given, off, cap, least=least)

    return find_difference(rounding.sample, original, expected, judge, shown, forgive=forgive)


def find_lost(rounding: Rounding, name: str, found: Array) -> Array:
    """Return which elements are not what the graphs mean, to half of the digits, however large the
    numbers on the way are.
    """
    meant = np.asarray(rounding.wide[name].value)
    off = Judge(0, rounding.eps, half=True).find_off(found, meant, magnitude(meant))
    return rounding.unexplained(name, found, meant, off, rounding.eps) if off.any() else off


def is_meant(rounding: Rounding, original: Mapping[str, Any], shown: Mapping[str, str]) -> bool:
    """Return whether all results are what the graphs mean; those that are None are not compared."""
    rows = [(name, original.get(name)) for name in shown if name in rounding.wide]
    known = [(name, np.asarray(array)) for name, array in rows if array is not None]
    return all(
        found.shape == np.shape(rounding.wide[name].value)
        and not find_lost(rounding, name, found).any()
        for name, found in known
    )


def as_floats(array: Array) -> Array:
    return np.asarray(array).astype(np.float64)


def differ_from_meaning(
    rounding: Rounding,
    original: Mapping[str, Any],
    shown: Mapping[str, str],
    *,
    half: bool,
    least: float,
    is_derived: bool,
) -> Difference | None:
    """Return where results are not those of the graphs in float64, nor in NumPy and the dtype of
    the call.
    """
    wide = rounding.wide
    judge = Judge(count_ops(rounding.graphs), coarsest(rounding.graphs, rounding.eps), half)
    known = {name: a for name, a in original.items() if name in wide}
    own: dict[str, Bounded] = {}

    def forgive(name: str, found: Array, given: Array, off: Array) -> Array:
        if not own:
            own.update(run_in_own_dtype(rounding) or {"": Bounded(None, None)})
        if name in own and np.shape(own[name].value) == found.shape:
            off = off & judge.find_off(found, np.asarray(own[name].value), own[name].largest)
        if is_derived and name.startswith("gradient") and found.shape == given.shape:
            off = rounding.find_other_slopes(found, given, off)
        if not off.any():
            return off
        return rounding.unexplained(name, found, given, off, COARSEST, least=least)

    return find_difference(rounding.sample, known, wide, judge, shown, forgive=forgive)
