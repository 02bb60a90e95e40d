"""Laws of unusual inputs: numbers that are not finite, one row for all, no axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..capture.dialects import xp as _xp
from .judging import NotApplicable, differ, start, worst
from .trial import Arrays, Trial

xp: Any = _xp
FAR = 1e3  # on either side of where codes decide
MOST_SUSPECTS = 8  # elements of which it is asked whether they have a part in an output


def judge_not_finite(trial: Trial) -> str:
    """Compare gradients with those before one element of the first float was infinite or NaN: of
    the outputs that are the same, at the elements that have no part in the others.
    """
    _, u = start(trial)
    given, n = trial.cast(trial.wide), trial.floats[0]
    if not given[n].size:
        raise NotApplicable("it has no element")
    was_told = False
    for number in (np.inf, -np.inf, np.nan):
        other = trial.run(_with(given, n, 0, number))
        changed = _changed(trial, given, other.arrays())
        if all(each.all() for each in changed):
            continue  # a sum of all
        was_told = True
        masked = [np.where(c, 0, a).astype(a.dtype) for c, a in zip(changed, u, strict=True)]
        found, wanted = other.gradients(masked), trial.run(given).gradients(masked)
        for k in trial.floats:
            got, want = found[k], wanted[k]
            if got is None or want is None:
                continue
            places = [p for p in np.flatnonzero(differ(got, want)).tolist() if (k, p) != (n, 0)]
            for place in places[:MOST_SUSPECTS]:
                bases = (given, *(_with(given, n, 0, sign * FAR) for sign in (1, -1)))
                if not any(_has_part(trial, base, changed, k, place) for base in bases):
                    where = "".join(f"[{i}]" for i in np.unravel_index(place, want.shape))
                    return (
                        f"argument {n}'s first element = {number}: argument {k}{where}: "
                        f"{got.flat[place]:.9g}, before {want.flat[place]:.9g}"
                    )
    if not was_told:
        raise NotApplicable("one element changes all outputs")
    return ""


def _with(given: Arrays, n: int, place: int, number: float) -> Arrays:
    arrays = [a.copy() for a in given]
    arrays[n].flat[place] = number
    return arrays


def _changed(trial: Trial, given: Arrays, outputs: Arrays) -> list[Any]:
    """Return which elements of outputs are others than before: where none is, as of a step, the
    first rows, in which one element may have a part.
    """
    before = trial.run(given).arrays()
    changed = [differ(a, b) for a, b in zip(outputs, before, strict=True)]
    return changed if any(map(np.any, changed)) else [_first_row(each) for each in changed]


def _first_row(changed: Any) -> Any:
    """Return the places of an output that one element may have a part in, though none shows it."""
    row = changed.size // changed.shape[0] if changed.ndim and changed.size else 1
    return np.arange(changed.size).reshape(changed.shape) < row


def _has_part(trial: Trial, given: Arrays, changed: Arrays, n: int, place: int) -> bool:
    """Return whether an element changes any of these places of the outputs."""
    before = trial.run(given).arrays()
    value = float(given[n].flat[place])
    for number in (np.nan, value + 1.0, value - 1.0, 2.0 * value):
        after = trial.run(_with(given, n, place, number)).arrays()
        if any((differ(a, b) & c).any() for a, b, c in zip(after, before, changed, strict=True)):
            return True
    return False


def judge_broadcast_input(trial: Trial) -> str:
    """`x.expand(n, -1)` is one row of stride 0, which holds the same numbers as n rows."""
    if trial.backend.tensors.is_contiguous is None:
        raise NotApplicable(f"{trial.backend.name}'s tensors have no strides")
    rows = _of_inputs(trial, lambda a: a[:1] if a.ndim and a.shape[0] > 1 else None)
    arrays = trial.cast(trial.wide)
    for n, row in rows.items():
        arrays[n] = np.broadcast_to(row, arrays[n].shape).copy()
    run = _run_or_pass(trial, arrays)
    u = trial.cotangents(run)
    wanted = run.gradients(u)
    if not all(np.isfinite(a).all() for a in (*run.arrays(), *wanted) if a is not None):
        raise NotApplicable("it is not finite where all rows are alike")
    tensors = [trial.backend.tensors.from_numpy(a.copy()) for a in arrays]
    for n, row in rows.items():
        one = trial.backend.tensors.from_numpy(row.copy())
        tensors[n] = xp.broadcast_to(one, arrays[n].shape)
    other = trial.run_on(tensors)
    said = worst(other.arrays(), run.arrays(), trial.loose, trial.noise)
    if said:
        return f"the output differs: {said.replace('argument', 'output')}"
    return worst(other.gradients(u), wanted, trial.loose, trial.noise)


def judge_no_axes(trial: Trial) -> str:
    """What takes a vector of one element takes that element alone, and gives the same."""
    ones = _of_inputs(
        trial, lambda a: a.reshape(-1)[:1] if a.ndim and a.size else None, are_all=True
    )
    arrays = trial.cast(trial.wide)
    for n, one in ones.items():
        arrays[n] = one
    run = _run_or_pass(trial, arrays)
    if any(y.shape != (1,) for y in run.arrays()):
        raise NotApplicable("its outputs have other axes than its inputs")
    u = trial.cotangents(run)
    bare = [a.reshape(()) if n in ones else a for n, a in enumerate(arrays)]
    other = trial.run(bare)
    shapes = [y.shape for y in other.arrays()]
    if any(shapes):
        raise NotApplicable("its outputs have axes all the same")
    said = worst([y.reshape(1) for y in other.arrays()], run.arrays(), trial.loose, trial.noise)
    if said:
        return f"the output differs: {said.replace('argument', 'output')}"
    found = other.gradients([a.reshape(()) for a in u])
    for n, got in enumerate(found):
        if got is not None and got.shape != bare[n].shape:
            return f"argument {n} without axes has a gradient of shape {got.shape}"
    wide = [g if g is None else g.reshape(arrays[n].shape) for n, g in enumerate(found)]
    return worst(wide, run.gradients(u), trial.loose, trial.noise)


def _of_inputs(trial: Trial, change: Callable[[Any], Any], are_all: bool = False) -> dict[int, Any]:
    """Return what some inputs become, by their places: floats or all, parameters aside."""
    count = len(trial.given) - getattr(trial.call, "held", 0)
    changed = {
        n: change(a)
        for n, a in enumerate(trial.cast(trial.wide)[:count])
        if are_all or n in trial.floats
    }
    kept = {n: a for n, a in changed.items() if a is not None}
    if not kept:
        raise NotApplicable("its inputs have no axes")
    return kept


def _run_or_pass(trial: Trial, arrays: Arrays) -> Any:
    """Run forward; what does not take these numbers or shapes at all is asked nothing."""
    try:
        run = trial.run(arrays)
        run.gradients(trial.cotangents(run))
    except Exception as error:
        raise NotApplicable("it takes no such inputs") from error
    if not run.outputs:
        raise NotApplicable("it has no float output")
    return trial.run(arrays)
