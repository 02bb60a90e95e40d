"""Laws of cotangents, memory layout, repeated calls and unusual inputs, exact for any formula."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from ..capture.dialects import xp as _xp
from ..look.subject import brackets
from .trial import (
    Arrays,
    ForwardRun,
    NotApplicable,
    Trial,
    compare_runs,
    differ,
    exactly,
    outputs_differ,
    scaled,
    start,
    with_element,
    worst,
)

xp: Any = _xp
THREADS = 4
TURNS = 8  # of each thread


# --- what is linear -------------------------------------------------------------------------------


def judge_linear(trial: Trial) -> str:
    run, u = start(trial)
    v = trial.cotangents(run, seed=1)
    # Both factors are exact in every float dtype.
    pairs = zip(scaled(u, 1.75), scaled(v, -0.625), strict=True)
    mixed = [a + b for a, b in pairs]
    one, other, both = (trial.run().gradients(c) for c in (u, v, mixed))
    wanted = [
        None if a is None or b is None else 1.75 * a - 0.625 * b
        for a, b in zip(one, other, strict=True)
    ]
    return worst(both, wanted, trial.loose, 4 * trial.noise)  # of three gradients


def judge_scale(trial: Trial) -> str:
    """Powers of two are exact, so that a gradient that is linear follows them to the bit."""
    run, u = start(trial)
    return _follows(trial, run, u, 4.0)


def judge_ones(trial: Trial) -> str:
    """A loss has the cotangent 1, for which kernels take shortcuts."""
    run, u = start(trial)
    return _follows(trial, run, [np.ones_like(a) for a in u], 2.0)


def _follows(trial: Trial, run: ForwardRun, cotangents: Arrays, factor: float) -> str:
    other = trial.run().gradients(scaled(cotangents, factor))
    return worst(other, scaled(run.gradients(cotangents), factor), 1e-12)


def judge_zero(trial: Trial) -> str:
    """Compare where the gradient is finite only: at a pole, 0 times infinity is NaN."""
    run, u = start(trial)
    usual = run.gradients(u)
    zeros = trial.run().gradients([np.zeros_like(a) for a in u])
    wanted = [
        None if g is None else np.where(np.isfinite(each), 0, g).astype(g.dtype)
        for g, each in zip(zeros, usual, strict=True)
    ]
    return exactly(zeros, wanted)


def judge_each_output(trial: Trial) -> str:
    run, u = start(trial)
    if len(u) < 2:
        raise NotApplicable("it has one output")
    whole = run.gradients(u)
    parts = []
    for n in range(len(u)):
        own = [a if i == n else np.zeros_like(a) for i, a in enumerate(u)]
        parts.append(trial.run().gradients(own))
    sums = [
        None if any(g is None for g in each) else sum(each) for each in zip(*parts, strict=True)
    ]
    return worst(sums, whole, trial.loose, trial.noise)


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


# --- repeated, interleaved and concurrent calls ---------------------------------------------------


def judge_twice(trial: Trial) -> str:
    run, u = start(trial)
    first = run.gradients(u)
    return exactly(run.gradients(u), first)


def judge_written(trial: Trial) -> str:
    arrays = trial.cast(trial.wide)
    run, u = start(trial)
    before = [np.array(a) for a in run.arrays()]
    made = trial.tensors(u)
    run.pull(made)
    for kind, tensors, wanted in (
        ("input", run.inputs, arrays), ("cotangent", made, u), ("output", run.outputs, before),
    ):  # fmt: skip
        said = exactly([run.read(x) for x in tensors], list(wanted))
        if said:
            return f"it writes into its {said.replace('argument', kind)}"
    return ""


def judge_repeatable(trial: Trial) -> str:
    run, u = start(trial)
    again = trial.run()
    said = exactly(again.arrays(), run.arrays())
    if said:
        return f"two calls differ: {said.replace('argument', 'output')}"
    return exactly(again.gradients(u), run.gradients(u))


def judge_interleaved(trial: Trial) -> str:
    """Two calls are under way before either goes backward, as in a network that uses it twice."""
    run, u = start(trial)
    alone = trial.run().gradients(u)
    trial.run(trial.changed(trial.cast(trial.wide), lambda a: a * 0.5))
    return exactly(run.gradients(u), alone)


def judge_threads(trial: Trial) -> str:
    """Each thread has numbers of its own, so that a value of another thread shows."""
    given = trial.cast(trial.wide)
    each = [trial.changed(given, lambda a, k=k: a * (1 - k / 8)) for k in range(THREADS)]
    u = [trial.cotangents(trial.run(arrays), seed=k) for k, arrays in enumerate(each)]
    wanted = [trial.run(arrays).gradients(c) for arrays, c in zip(each, u, strict=True)]

    def work(k: int) -> str:
        with trial.quiet():
            for _ in range(TURNS):
                said = exactly(trial.run(each[k]).gradients(u[k]), wanted[k])
                if said:
                    return said
        return ""

    with ThreadPoolExecutor(THREADS) as pool:
        return next(filter(None, pool.map(work, range(THREADS))), "")


# --- unusual inputs -----------------------------------------------------------------------------


FAR = 1e3  # on either side of where codes decide
MOST_SUSPECTS = 8  # elements of which it is asked whether they have a part in an output


def judge_not_finite(trial: Trial) -> str:
    """Compare gradients with those before one element became infinite or NaN: of the outputs that
    did not change, for the elements that have no part in the others.
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
        found, wanted = other.gradients(masked), trial.run(given).gradients(masked)
        for k in trial.floats:
            got, want = found[k], wanted[k]
            if got is None or want is None:
                continue
            # The changed element itself may have any gradient.
            places = [p for p in np.flatnonzero(differ(got, want)).tolist() if (k, p) != (n, 0)]
            for place in places[:MOST_SUSPECTS]:
                # Also far away on either side: a branch may hide the part at the given numbers.
                bases = (given, *(with_element(given, n, 0, sign * FAR) for sign in (1, -1)))
                if not any(_has_part(trial, base, changed, k, place) for base in bases):
                    where = brackets(np.unravel_index(place, want.shape))
                    return (
                        f"argument {n}'s first element = {number}: argument {k}{where}: "
                        f"{got.flat[place]:.9g}, before {want.flat[place]:.9g}"
                    )
    if not was_told:
        raise NotApplicable("one element changes all outputs")
    return ""


def _changed(trial: Trial, given: Arrays, outputs: Arrays) -> list[Any]:
    before = trial.run(given).arrays()
    changed = [differ(a, b) for a, b in zip(outputs, before, strict=True)]
    # A step shows no change: then the first row counts as changed.
    return changed if any(map(np.any, changed)) else [_first_row(each) for each in changed]


def _first_row(changed: Any) -> Any:
    row = changed.size // changed.shape[0] if changed.ndim and changed.size else 1
    return np.arange(changed.size).reshape(changed.shape) < row


def _has_part(trial: Trial, given: Arrays, changed: Arrays, n: int, place: int) -> bool:
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
    # `held` counts the parameters, which are the last inputs.
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
    try:
        run = trial.run(arrays)
        run.gradients(trial.cotangents(run))
    except Exception as error:
        raise NotApplicable("it takes no such inputs") from error
    if not run.outputs:
        raise NotApplicable("it has no float output")
    # A fresh run: the gradients above may have used its graph up.
    return trial.run(arrays)
