"""The loop of `training/in_jax.py` with each batch split over devices, by automatic sharding.

The step is the same function; only where the batch lies says that there are several devices, and
a rule's reduction is of the whole batch without being told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from ..task import ActivationName, EpochReport, Task, Tensor, Weights, backward_rule, batches
from ..training.in_jax import Logits, Parameters, build, build_predict, load

Step = Callable[..., tuple[Parameters, jax.Array]]


def join(folder: Path, rank: int, devices: int) -> None:
    """Check that the process has the devices: they are in the environment that it started in."""
    assert rank == 0
    assert len(jax.devices()) >= devices


def train(
    task: Task, forward: ActivationName, rule: str | None, devices: int, report: EpochReport
) -> tuple[Weights, list[float]]:
    """Train with SGD; return the weights, and the seconds of each step."""
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,))
    split, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    compute_logits = build(forward)
    step, predict = build_step(compute_logits, task.learning_rate), build_predict(compute_logits)
    weights = jax.device_put(load(task.weights), whole)
    test_x = jax.device_put(task.test_x, whole)
    seconds = []
    with backward_rule(rule):
        for order in task.orders:
            losses = []
            for batch in batches(task, order):
                start = time.perf_counter()
                weights, loss = step(weights, *jax.device_put(pad(*batch, devices), split))
                losses.append(float(loss))
                seconds.append(time.perf_counter() - start)
            report(sum(losses) / len(order), np.asarray(predict(weights, test_x)))
    return tuple(map(np.asarray, weights)), seconds


def pad(x: np.ndarray, labels: np.ndarray, devices: int) -> tuple[np.ndarray, ...]:
    """Return a batch that every device gets an equal part of, and what each sample counts.

    jax refuses an axis that its devices do not divide; the samples put in count nothing.
    """
    missing = -len(labels) % devices
    counts = np.pad(np.ones(len(labels), np.float32), (0, missing))
    return np.pad(x, ((0, missing), (0, 0))), np.pad(labels, (0, missing)), counts


def build_step(compute_logits: Logits, learning_rate: float) -> Step:
    """Return one compiled step of SGD; it gives the sum of the samples' losses."""

    def compute_loss(weights: Parameters, x: Tensor, labels: Tensor, counts: Tensor) -> jax.Array:
        log_probabilities = jax.nn.log_softmax(compute_logits(weights, x))
        chosen = jnp.take_along_axis(log_probabilities, labels[:, None], axis=1)[:, 0]
        return -(counts * chosen).sum() / counts.sum()

    differentiate = jax.value_and_grad(compute_loss)

    @jax.jit
    def step(
        weights: Parameters, x: Tensor, labels: Tensor, counts: Tensor
    ) -> tuple[Parameters, jax.Array]:
        loss, gradients = differentiate(weights, x, labels, counts)
        stepped = zip(weights, gradients, strict=True)
        new = tuple(weight - learning_rate * gradient for weight, gradient in stepped)
        return new, loss * counts.sum()

    return step
