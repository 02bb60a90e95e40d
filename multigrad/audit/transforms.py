"""Laws of the framework's transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .judging import NotApplicable, start, worst
from .trial import Arrays, Trial


def judge_batched(trial: Trial) -> str:
    """The framework's map over a batch gives what a loop over it gives."""
    backend = trial.backend
    if backend.autodiff.vmap is None or backend.autodiff.vjp is None:
        raise NotApplicable(f"{backend.name} has no map over a batch that keeps custom gradients")
    given = trial.cast(trial.wide)
    batches = [np.stack([given[n], given[n] * 0.5]) for n in trial.floats]

    def tensors_with(floats: Sequence[Any]) -> list[Any]:
        rest = dict(zip(trial.floats, floats, strict=True))
        return [
            rest[n] if n in rest else backend.tensors.from_numpy(np.array(a))
            for n, a in enumerate(given)
        ]

    def mapped(floats: Sequence[Any]) -> list[Any]:
        assert backend.autodiff.vmap is not None
        return list(
            backend.autodiff.vmap(lambda *each: tuple(trial.outputs(tensors_with(each))))(*floats)
        )

    made = [backend.tensors.from_numpy(a.copy()) for a in batches]
    singles = [trial.run(_replaced(given, trial.floats, [b[i] for b in batches])) for i in (0, 1)]
    u = [trial.cotangents(single, seed=i) for i, single in enumerate(singles)]
    assert backend.autodiff.vjp is not None
    _, pull = backend.autodiff.vjp(mapped, made)
    stacked = [np.stack(pair) for pair in zip(*u, strict=True)]
    found = pull([backend.tensors.from_numpy(a) for a in stacked])
    alone = [single.gradients(c) for single, c in zip(singles, u, strict=True)]
    wanted = [
        None if alone[0][n] is None else np.stack([each[n] for each in alone]) for n in trial.floats
    ]
    return worst([singles[0].read(g) for g in found], wanted, trial.loose, trial.noise)


def _replaced(arrays: Arrays, places: Sequence[int], others: Arrays) -> Arrays:
    rest = dict(zip(places, others, strict=True))
    return [rest.get(n, a) for n, a in enumerate(arrays)]


def judge_compiled(trial: Trial) -> str:
    """The framework's compiler gives what eager code gives."""
    backend = trial.backend
    if backend.compiler.jit is None or backend.autodiff.vjp is None:
        raise NotApplicable(f"{backend.name} has no compiler")
    run, u = start(trial)
    wanted = run.gradients(u)
    made = [backend.tensors.from_numpy(a.copy()) for a in u]

    def both(*tensors: Any) -> list[Any]:
        found = trial.run_on(list(tensors), backend.modes.once).pull(made)
        return [each for each in found if each is not None]

    compiled = backend.compiler.jit(both, {})(
        *(backend.tensors.from_numpy(np.array(a)) for a in trial.cast(trial.wide))
    )
    found = [run.read(each) for each in compiled]
    return worst(found, [g for g in wanted if g is not None], trial.loose, trial.noise)
