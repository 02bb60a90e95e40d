"""Laws of unusual inputs and cotangents: other memory layouts, numbers that are not finite, rows
that share memory, and no axes.

A judge returns what it saw, "" if the law is kept (see `trial.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..capture.dialects import xp as _xp
from ..look.subject import brackets
from .trial import (
    Arrays,
    NotApplicable,
    Trial,
    compare_runs,
    differ,
    outputs_differ,
    start,
    with_element,
    worst,
)

xp: Any = _xp


# --- how cotangents and inputs lie in memory ------------------------------------------------------


def _strided(trial: Trial, x: Any) -> Any:
    if trial.backend.tensors.is_contiguous is None:
        raise NotApplicable(f"{trial.backend.name}'s tensors have no strides")
    if len(x.shape) < 2:
        # Every second element of a doubled vector has stride 2.
        wide = xp.repeat(x.reshape(-1), 2) if len(x.shape) else x
        return wide[::2].reshape(x.shape) if len(x.shape) else x
    # The axes are swapped in memory, then swapped back as a view.
    turned = np.ascontiguousarray(
        np.swapaxes(np.asarray(trial.backend.tensors.to_numpy(x)), -1, -2)
    )
    return xp.swapaxes(trial.backend.tensors.from_numpy(turned), -1, -2)


def judge_strided_cotangent(trial: Trial) -> str:
    run, u = start(trial)
    wanted = run.gradients(u)
    other = trial.run()
    made = [_strided(trial, x) for x in trial.tensors(u)]
    return worst([run.read(g) for g in other.pull(made)], wanted, trial.loose, trial.noise)


def judge_broadcast_cotangent(trial: Trial) -> str:
    """`y.sum().backward()` passes one number of stride 0."""
    run, u = start(trial)
    if trial.backend.tensors.is_contiguous is None:
        raise NotApplicable(f"{trial.backend.name}'s tensors have no strides")
    number = [np.full_like(a, 0.75) for a in u]
    wanted = run.gradients(number)
    other = trial.run()
    one = trial.tensors([np.full((1,) * a.ndim, 0.75, a.dtype) for a in u])
    made = [xp.broadcast_to(x, a.shape) for x, a in zip(one, u, strict=True)]
    return worst([run.read(g) for g in other.pull(made)], wanted, trial.loose, trial.noise)


def judge_strided_input(trial: Trial) -> str:
    run, u = start(trial)
    made = trial.changed(trial.tensors(trial.cast(trial.wide)), partial(_strided, trial))
    return compare_runs(trial, trial.run_on(made), run, u, run.gradients(u))


# --- other inputs ---------------------------------------------------------------------------------
FAR = 1e3  # on either side of where codes decide
MOST_SUSPECTS = 8  # elements of which it is asked whether they affect an output


def judge_not_finite(trial: Trial) -> str:
    """An infinite or NaN element may change only the gradients of elements that share an output
    with it; gradients are taken of the unaffected outputs.
    """
    _, u = start(trial)
    given, n = trial.cast(trial.wide), trial.floats[0]
    if not given[n].size:
        raise NotApplicable("it has no element")
    was_told = False
    for number in (np.inf, -np.inf, np.nan):
        other = trial.run(with_element(given, n, 0, number))
        changed = _changed(trial, given, other.arrays())
        if all(each.all() for each in changed):
            continue  # a sum of all
        was_told = True
        masked = [np.where(c, 0, a).astype(a.dtype) for c, a in zip(changed, u, strict=True)]
        leak = _find_leak(trial, given, changed, other.gradients(masked), masked)
        if leak:
            return f"argument {n}'s first element = {number}: {leak}"
    if not was_told:
        raise NotApplicable("one element changes all outputs")
    return ""


def _find_leak(
    trial: Trial, given: Arrays, changed: Arrays, gradients: Arrays, masked: Arrays
) -> str:
    """Return where a gradient changed though its element affects no changed output, "" if none.

    Args:
        given: the inputs before the first float input's first element changed.
        changed: where outputs changed.
        gradients: those after the change.
        masked: cotangents of the unchanged outputs.
    """
    n = trial.floats[0]
    # Also far away on either side: a branch may hide the effect at the given numbers.
    bases = (given, *(with_element(given, n, 0, sign * FAR) for sign in (1, -1)))
    before = trial.run(given).gradients(masked)
    for k in trial.floats:
        got, want = gradients[k], before[k]
        if got is None or want is None:
            continue
        # The changed element itself may have any gradient.
        places = [p for p in np.flatnonzero(differ(got, want)).tolist() if (k, p) != (n, 0)]
        for place in places[:MOST_SUSPECTS]:
            if not any(_affects(trial, base, changed, k, place) for base in bases):
                where = brackets(np.unravel_index(place, want.shape))
                return f"argument {k}{where}: {got.flat[place]:.9g}, before {want.flat[place]:.9g}"
    return ""


def _changed(trial: Trial, given: Arrays, outputs: Arrays) -> list[Any]:
    before = trial.run(given).arrays()
    changed = [differ(a, b) for a, b in zip(outputs, before, strict=True)]
    # A step shows no change: then the first row counts as changed.
    return changed if any(map(np.any, changed)) else [_first_row(each) for each in changed]


def _first_row(changed: Any) -> Any:
    row = changed.size // changed.shape[0] if changed.ndim and changed.size else 1
    return np.arange(changed.size).reshape(changed.shape) < row


def _affects(trial: Trial, given: Arrays, changed: Arrays, n: int, place: int) -> bool:
    """Return whether one element of input n affects an output where `changed` is true."""
    before = trial.run(given).arrays()
    value = float(given[n].flat[place])
    # NaN spreads through most functions; the steps are for those that drop it.
    for number in (np.nan, value + 1.0, value - 1.0, 2.0 * value):
        after = trial.run(with_element(given, n, place, number)).arrays()
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
    tensors = trial.tensors(arrays)
    for n, row in rows.items():
        tensors[n] = xp.broadcast_to(*trial.tensors([row]), arrays[n].shape)
    return compare_runs(trial, trial.run_on(tensors), run, u, wanted)


def judge_no_axes(trial: Trial) -> str:
    """Compare a scalar with a vector of one element."""
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
    said = outputs_differ(trial, [y.reshape(1) for y in other.arrays()], run.arrays())
    if said:
        return said
    gradients = other.gradients([a.reshape(()) for a in u])
    for n, got in enumerate(gradients):
        if got is not None and got.shape != bare[n].shape:
            return f"argument {n} without axes has a gradient of shape {got.shape}"
    wide = [g if g is None else g.reshape(arrays[n].shape) for n, g in enumerate(gradients)]
    return worst(wide, run.gradients(u), trial.loose, trial.noise)


def _of_inputs(trial: Trial, change: Callable[[Any], Any], are_all: bool = False) -> dict[int, Any]:
    """Return the changed inputs by position: float inputs or all, but never parameters."""
    # Parameters are the last inputs (see `Opened`).
    count = len(trial.given) - getattr(trial.call, "parameter_count", 0)
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
    try:
        run = trial.run(arrays)
        run.gradients(trial.cotangents(run))
    except Exception as error:
        raise NotApplicable("it takes no such inputs") from error
    if not run.outputs:
        raise NotApplicable("it has no float output")
    # A fresh run: the gradients above may have used its graph up.
    return trial.run(arrays)
