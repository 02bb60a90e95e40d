"""A schedule stepped after each step of a training against a constant: ratios, and traces made
after the first ones.

`python tools/bench schedules torch | jax | tensorflow | keras [--quick]`; for Keras on the
backend that KERAS_BACKEND names. The two run interleaved, 1,000 steps of each; each ratio is one of
two calls right after each other, and the quartiles are shown: of what the processors worked, which
other programs on the machine do not touch as they do the time on the wall.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

import multigrad as xg
from bench.cases import Effort
from bench.harness import keep_memory, make_training, prepare_threads
from bench.measure import Clocked, run_clocked_race
from multigrad.command.options import prepare_environment

Tensor = Any
Step = Callable[[], Any]
STEPS, BATCH, UNITS, CLASSES = 1000, 256, 256, 10
RULE, WIDTH = "triangular", 2.0
BATCHES = 50  # of an epoch, in Keras
WARM_UPS = 5


class Traces:
    """Counts how often Python runs code that is to be traced once."""

    def __init__(self) -> None:
        self.number = 0


# --- one training step per framework --------------------------------------------------------------


def torch_step(width: Any, compile_: Callable[..., Any], traces: Traces) -> Step:
    """Return a step in torch."""
    import torch

    torch.set_num_threads(1)
    arrays, x, y = make_training(BATCH, UNITS)
    weights = [torch.nn.Parameter(torch.tensor(w)) for w in arrays]
    x, y = torch.tensor(x), torch.tensor(y)
    optimizer = torch.optim.SGD(weights, lr=1e-3)
    act = xg.activation("Heaviside", RULE, {"width": width})

    @torch.compiler.assume_constant_result
    def count() -> int:  # runs when Dynamo reads it, and is no part of the graph
        traces.number += 1
        return traces.number

    def compute_loss(x: Tensor, y: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            count()
        hidden = act(act(x @ weights[0]) @ weights[1])
        return (hidden @ weights[2] - y).square().mean()

    run = compile_(compute_loss)

    def step() -> None:
        optimizer.zero_grad()
        run(x, y).backward()
        optimizer.step()

    return step


def jax_step(width: Any, compile_: Callable[..., Any], traces: Traces) -> Step:
    """Return a step in jax."""
    import jax

    arrays, x, y = make_training(BATCH, UNITS)
    act = xg.activation("Heaviside", RULE, {"width": width})

    def compute_loss(weights: Any, x: Tensor, y: Tensor) -> Tensor:
        hidden = act(act(x @ weights[0]) @ weights[1])
        return ((hidden @ weights[2] - y) ** 2).mean()

    def train(weights: Any, x: Tensor, y: Tensor) -> Any:
        traces.number += 1
        grads = jax.grad(compute_loss)(weights, x, y)
        return [w - 1e-3 * g for w, g in zip(weights, grads, strict=True)]

    run = compile_(train)
    weights = [jax.numpy.asarray(w) for w in arrays]
    x, y = jax.numpy.asarray(x), jax.numpy.asarray(y)

    def step() -> None:
        nonlocal weights
        weights = jax.block_until_ready(run(weights, x, y))

    return step


def tensorflow_step(width: Any, compile_: Callable[..., Any], traces: Traces) -> Step:
    """Return a step in TensorFlow."""
    import tensorflow as tf

    arrays, x, y = make_training(BATCH, UNITS)
    weights = [tf.Variable(w) for w in arrays]
    x, y = tf.constant(x), tf.constant(y)
    act = xg.activation("Heaviside", RULE, {"width": width})

    def train(x: Tensor, y: Tensor) -> Tensor:
        traces.number += 1
        with tf.GradientTape() as tape:
            hidden = act(act(x @ weights[0]) @ weights[1])
            loss = tf.reduce_mean((hidden @ weights[2] - y) ** 2)
        grads: list[Tensor] = tape.gradient(loss, weights)
        for weight, grad in zip(weights, grads, strict=True):
            weight.assign_sub(1e-3 * grad)
        return loss

    run = compile_(train)

    def step() -> None:
        run(x, y).numpy()

    return step


def compiled_by(module: str, name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function compiled by a framework's own compiler, which is imported now."""
    return getattr(import_module(module), name)(fn)


WAYS: Mapping[str, Mapping[str, tuple[Any, Any]]] = {
    "torch": {
        "eager": (torch_step, lambda fn: fn),
        "xg.jit": (torch_step, xg.jit),
        "torch.compile": (torch_step, partial(compiled_by, "torch", "compile")),
    },
    "jax": {"xg.jit": (jax_step, xg.jit)},
    "tensorflow": {
        "xg.jit": (tensorflow_step, xg.jit),
        "tf.function": (tensorflow_step, partial(compiled_by, "tensorflow", "function")),
    },
}


def measure(framework: str, way: str, steps: int) -> None:
    """Print the ratio of one way."""
    build, compile_ = WAYS[framework][way]
    schedule, traces = xg.schedule.linear(WIDTH, 1.0, 4 * STEPS), Traces()
    constant = build(WIDTH, compile_, Traces())
    advance = build(schedule, compile_, traces)

    def scheduled() -> None:
        advance()
        schedule.step()

    for step in (constant, scheduled) * WARM_UPS:
        step()
    before = traces.number
    contenders = {"constant": Clocked(constant), "schedule": Clocked(scheduled)}
    race = run_clocked_race(contenders, Effort.of_rounds(steps))
    made = "" if way == "eager" else f"{traces.number - before} retraces, "
    ratio = race.compare("schedule", "constant")
    show(f"{framework} {way}", ratio, made, race.summarize("constant").median)


def show(label: str, ratio: tuple[float, float, float], made: str, microseconds: float) -> None:
    low, middle, high = ratio
    print(f"{label:28} {middle:6.3f}  ({low:.3f} ... {high:.3f}; {made}{microseconds:.0f} us)")


# --- Keras ----------------------------------------------------------------------------------------


def measure_fit(steps: int) -> None:
    """Print the ratio of `fit`, epoch by epoch."""
    import keras as imported

    import multigrad.keras as xk

    keras: Any = imported  # gathers its public names at import, where pyright cannot follow

    schedule, traces = xg.schedule.linear(WIDTH, 1.0, 4 * STEPS), Traces()
    constant = build_epoch(keras, xk, WIDTH, [], Traces())
    scheduled = build_epoch(keras, xk, schedule, [xk.Anneal()], traces)
    for epoch in (constant, scheduled) * 3:
        epoch()
    before, number = traces.number, max(steps // BATCHES, 4)
    contenders = {"constant": constant, "schedule": scheduled}
    race = run_clocked_race(contenders, Effort.of_rounds(number))
    # Keras runs a model on torch as it is.
    is_eager = keras.config.backend() == "torch"
    made = "" if is_eager else f"{traces.number - before} retraces, "
    label = f"keras on {keras.config.backend()}, fit"
    ratio, constant = race.compare("schedule", "constant"), race.summarize("constant").median
    show(label, ratio, made, constant / BATCHES)


def build_epoch(
    keras: Any, xk: Any, width: Any, callbacks: list[Any], traces: Traces
) -> Callable[[], float]:
    """Return an epoch of a model, which says how many seconds it took."""

    class Counted(keras.layers.Dense):
        def call(self, inputs: Tensor) -> Tensor:
            traces.number += 1
            return super().call(inputs)

    _, x, y = make_training(BATCH, UNITS)
    x, y = np.tile(x, (BATCHES, 1)), np.tile(y, (BATCHES, 1))
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.Input((UNITS,)),
            keras.layers.Dense(UNITS),
            xk.Activation("Heaviside", RULE, {"width": width}),
            Counted(UNITS),
            xk.Activation("Heaviside", RULE, {"width": width}),
            keras.layers.Dense(CLASSES),
        ]
    )
    model.compile(keras.optimizers.SGD(1e-3), "mse")

    class Clock(keras.callbacks.Callback):
        seconds = start = 0.0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            Clock.start = time.process_time()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            Clock.seconds = time.process_time() - Clock.start

    def run() -> float:
        model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False, callbacks=[*callbacks, Clock()])
        return Clock.seconds

    return run


def main(words: list[str]) -> None:
    """Print a row for each way of the frameworks that are named."""
    prepare_environment()
    prepare_threads(1)
    keep_memory()
    steps = 100 if "--quick" in words else STEPS
    for name in words:
        for way in WAYS.get(name, ()):
            measure(name, way, steps)
        if name == "keras":
            measure_fit(steps)


if __name__ == "__main__":
    main(sys.argv[1:])
