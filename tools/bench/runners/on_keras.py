"""Epochs of `fit` in Keras, on the backend that this process runs: our layer, bridged ones, and one
written by hand.

All models begin with the same weights and see the same batches, so that they compute the same
numbers.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

import multigrad.keras as xk

from ..cases import KERAS_PART, NATIVE, OURS, STEP, Effort
from ..fits import Workload
from ..harness import keep_memory
from ..measure import run_clocked_race
from ..results import Contest, to_row
from ..rivals.in_keras import Step

CLASSES = 10
# the first epoch compiles; on jax the second one may again, for what the first has put elsewhere
WARM_UPS = 2


def measure(guests: Sequence[str], threads: int, effort: Effort, workload: Workload) -> Contest:
    generator, count = np.random.default_rng(0), workload.batch * workload.batches
    x = generator.standard_normal((count, workload.features), dtype=np.float32)
    data = x, generator.integers(0, CLASSES, count), workload.batch
    layers = list_layers(guests).items()
    epochs = {name: build_epoch(build_model(make, workload), data) for name, make in layers}
    for epoch in (*epochs.values(),) * WARM_UPS:
        epoch()
    race = run_clocked_race(epochs, effort)
    size = workload.batch * workload.units
    backend = keras.config.backend()
    return Contest.of(race, KERAS_PART, backend, STEP, size=size, threads=threads)


def list_layers(guests: Sequence[str]) -> dict[str, Callable[[], Any]]:
    ours = partial(xk.Activation, STEP.forward, rule=STEP.rule)
    bridged = {f"{OURS} in {guest}": partial(ours, backend=guest) for guest in guests}
    return {NATIVE: Step, OURS: ours, **bridged}


def build_model(make: Callable[[], Any], workload: Workload) -> Any:
    keras.utils.set_random_seed(0)
    dense = keras.layers.Dense
    model = keras.Sequential(
        [
            keras.Input((workload.features,)),
            dense(workload.units),
            make(),
            dense(workload.units),
            make(),
            dense(CLASSES),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss)
    return model


def build_epoch(model: Any, data: tuple[Any, Any, int]) -> Callable[[], float]:
    x, labels, batch = data
    times: list[float] = []

    def note(epoch: int, logs: Any = None) -> None:
        times.append(time.perf_counter())

    # Without what `fit` does around it. In the end the last loss is known, so all work is done.
    clock = keras.callbacks.LambdaCallback(on_epoch_begin=note, on_epoch_end=note)

    def epoch() -> float:
        model.fit(x, labels, batch_size=batch, shuffle=False, verbose=0, callbacks=[clock])
        return times[-1] - times[-2]

    return epoch


def main(request: str, reply: str) -> None:
    asked = json.loads(request)
    keep_memory()
    effort, workload = Effort(**asked["effort"]), Workload(**asked["workload"])
    contest = measure(asked["guests"], asked["threads"], effort, workload)
    answer = {"version": f"Keras {keras.__version__}", "contest": to_row(contest)}
    Path(reply).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
