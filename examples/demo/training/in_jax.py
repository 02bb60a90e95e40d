"""The training loop in JAX: the activation is in a jitted step, `xg.use` stands around it."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import multigrad as xg

from ..task import (
    ActivationName,
    EpochReport,
    Task,
    Tensor,
    Weights,
    backward_rule,
    batches,
    first_batch,
    mean_loss,
)

Parameters = tuple[jax.Array, ...]
Logits = Callable[[Parameters, Tensor], jax.Array]


def describe() -> str:
    return f"JAX {jax.__version__} on {jax.default_backend()}"


def train(task: Task, forward: ActivationName, rule: str | None, report: EpochReport) -> Weights:
    compute_logits = build(forward)
    step = build_step(compute_logits, task.learning_rate)
    weights = tuple(map(jnp.asarray, task.weights))
    with backward_rule(rule):
        *_, first = step(weights, *first_batch(task))
        for order in task.orders:
            losses = []
            for x, labels in batches(task, order):
                weights, loss, _ = step(weights, x, labels)
                losses.append(loss)
            predicted = compute_logits(weights, task.test_x).argmax(1)
            report(mean_loss(losses, len(order)), np.asarray(predicted))
    return tuple(map(np.asarray, first))


def build(forward: ActivationName) -> Logits:
    """Return the network as a function of its weights and an input."""
    activation = xg.activation(forward)

    def compute_logits(weights: Parameters, x: Tensor) -> jax.Array:
        hidden_weight, hidden_bias, output_weight, output_bias = weights
        hidden = activation(x @ hidden_weight + hidden_bias)
        return hidden @ output_weight + output_bias

    return compute_logits


def build_loss(compute_logits: Logits) -> Callable[[Parameters, Tensor, Tensor], jax.Array]:
    """Return the mean cross entropy as a function of the weights and a batch."""

    def compute_loss(weights: Parameters, x: Tensor, labels: Tensor) -> jax.Array:
        log_probabilities = jax.nn.log_softmax(compute_logits(weights, x))
        return -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1).mean()

    return compute_loss


def build_step(
    compute_logits: Logits, learning_rate: float
) -> Callable[[Parameters, Tensor, Tensor], tuple[Parameters, jax.Array, Parameters]]:
    """Return a compiled step of SGD, which gives the next weights, the loss and the gradients."""
    differentiate = jax.value_and_grad(build_loss(compute_logits))

    @jax.jit
    def step(
        weights: Parameters, x: Tensor, labels: Tensor
    ) -> tuple[Parameters, jax.Array, Parameters]:
        loss, gradients = differentiate(weights, x, labels)
        stepped = zip(weights, gradients, strict=True)
        new = tuple(weight - learning_rate * gradient for weight, gradient in stepped)
        return new, loss, gradients

    return step
