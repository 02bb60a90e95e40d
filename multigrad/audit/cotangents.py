"""Laws of cotangents, of memory, and of calls that meet: what is exact whatever the formula is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..capture.dialects import xp as _xp
from .judging import NotApplicable, exactly, scaled, start, worst
from .trial import Arrays, Run, Trial

xp: Any = _xp
THREADS = 4
TURNS = 8  # of each thread


# --- what is linear -------------------------------------------------------------------------------


def judge_linear(trial: Trial) -> str:
    run, u = start(trial)
    v = trial.cotangents(run, seed=1)
    pairs = zip(scaled(u, 1.75), scaled(v, -0.625), strict=True)
    mixed = [a + b for a, b in pairs]
    one, other, both = (trial.run(trial.cast(trial.wide)).gradients(c) for c in (u, v, mixed))
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


def _follows(trial: Trial, run: Run, cotangents: Arrays, factor: float) -> str:
    other = trial.run(trial.cast(trial.wide)).gradients(scaled(cotangents, factor))
    return worst(other, scaled(run.gradients(cotangents), factor), 1e-12)


def judge_zero(trial: Trial) -> str:
    """Where there is a derivative: beyond a domain, or at a pole, 0 times it is no number."""
    run, u = start(trial)
    usual = run.gradients(u)
    found = trial.run(trial.cast(trial.wide)).gradients([np.zeros_like(a) for a in u])
    wanted = [
        None if g is None else np.where(np.isfinite(each), 0, g).astype(g.dtype)
        for g, each in zip(found, usual, strict=True)
    ]
    return exactly(found, wanted)


def judge_each_output(trial: Trial) -> str:
    run, u = start(trial)
    if len(u) < 2:
        raise NotApplicable("it has one output")
    whole = run.gradients(u)
    parts = []
    for n in range(len(u)):
        own = [a if i == n else np.zeros_like(a) for i, a in enumerate(u)]
        parts.append(trial.run(trial.cast(trial.wide)).gradients(own))
    sums = [
        None if any(g is None for g in each) else sum(each) for each in zip(*parts, strict=True)
    ]
    return worst(sums, whole, trial.loose, trial.noise)


# --- how cotangents and inputs lie in memory ------------------------------------------------------


def _strided(trial: Trial, x: Any) -> Any:
    """Return a tensor with the same numbers in another order of memory."""
    if trial.backend.tensors.is_contiguous is None:
        raise NotApplicable(f"{trial.backend.name}'s tensors have no strides")
    if len(x.shape) < 2:
        wide = xp.repeat(x.reshape(-1), 2) if len(x.shape) else x
        return wide[::2].reshape(x.shape) if len(x.shape) else x
    turned = np.ascontiguousarray(
        np.swapaxes(np.asarray(trial.backend.tensors.to_numpy(x)), -1, -2)
    )
    return xp.swapaxes(trial.backend.tensors.from_numpy(turned), -1, -2)


def judge_strided_cotangent(trial: Trial) -> str:
    run, u = start(trial)
    wanted = run.gradients(u)
    other = trial.run(trial.cast(trial.wide))
    made = [_strided(trial, trial.backend.tensors.from_numpy(a.copy())) for a in u]
    return worst([run.read(g) for g in other.pull(made)], wanted, trial.loose, trial.noise)


def judge_broadcast_cotangent(trial: Trial) -> str:
    """`y.sum().backward()` hands on one number of stride 0."""
    run, u = start(trial)
    if trial.backend.tensors.is_contiguous is None:
        raise NotApplicable(f"{trial.backend.name}'s tensors have no strides")
    number = [np.full_like(a, 0.75) for a in u]
    wanted = run.gradients(number)
    other = trial.run(trial.cast(trial.wide))
    one = [trial.backend.tensors.from_numpy(np.full((1,) * a.ndim, 0.75, a.dtype)) for a in u]
    made = [xp.broadcast_to(x, a.shape) for x, a in zip(one, u, strict=True)]
    return worst([run.read(g) for g in other.pull(made)], wanted, trial.loose, trial.noise)


def judge_strided_input(trial: Trial) -> str:
    run, u = start(trial)
    tensors = [trial.backend.tensors.from_numpy(a.copy()) for a in trial.cast(trial.wide)]
    floats = set(trial.floats)
    made = [_strided(trial, x) if n in floats else x for n, x in enumerate(tensors)]
    other = trial.run_on(made)
    said = worst(other.arrays(), run.arrays(), trial.loose, trial.noise)
    if said:
        return f"the output differs: {said.replace('argument', 'output')}"
    return worst(other.gradients(u), run.gradients(u), trial.loose, trial.noise)


# --- twice, and by whom ---------------------------------------------------------------------------


def judge_twice(trial: Trial) -> str:
    run, u = start(trial)
    first = run.gradients(u)
    return exactly(run.gradients(u), first)


def judge_written(trial: Trial) -> str:
    arrays = trial.cast(trial.wide)
    run, u = start(trial)
    before = [np.array(a) for a in run.arrays()]
    made = [trial.backend.tensors.from_numpy(a.copy()) for a in u]
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
    again = trial.run(trial.cast(trial.wide))
    said = exactly(again.arrays(), run.arrays())
    if said:
        return f"two calls differ: {said.replace('argument', 'output')}"
    return exactly(again.gradients(u), run.gradients(u))


def judge_interleaved(trial: Trial) -> str:
    """Two calls are under way before either goes backward, as in a network that uses it twice."""
    run, u = start(trial)
    alone = trial.run(trial.cast(trial.wide)).gradients(u)
    other = [a if n not in trial.floats else a * 0.5 for n, a in enumerate(trial.cast(trial.wide))]
    trial.run(other)
    return exactly(run.gradients(u), alone)


def judge_threads(trial: Trial) -> str:
    """Each thread has numbers of its own, so that one of another thread's is seen."""
    given = trial.cast(trial.wide)
    floats = set(trial.floats)
    each = [
        [a * (1 - k / 8) if n in floats else a for n, a in enumerate(given)] for k in range(THREADS)
    ]
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
