"""The demo's training loop in MLX: eager steps, `xg.use` stands around them."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

import multigrad as xg

from ..task import (
    ActivationName,
    EpochReport,
    Task,
    Weights,
    backward_rule,
    batches,
    first_batch,
    mean_loss,
)

Parameters = list[mx.array]
Logits = Callable[[Parameters, mx.array], mx.array]


def describe() -> str:
    return f"MLX {version('mlx')} on {mx.default_device().type.name}"


def train(task: Task, forward: ActivationName, rule: str | None, report: EpochReport) -> Weights:
    compute_logits = build(forward)
    differentiate = mx.value_and_grad(build_loss(compute_logits))
    weights = [mx.array(weight) for weight in task.weights]
    test_x = mx.array(task.test_x)
    with backward_rule(rule):
        _, first = differentiate(weights, *map(mx.array, first_batch(task)))
        for order in task.orders:
            losses: list[Any] = []
            for x, labels in batches(task, order):
                loss, gradients = differentiate(weights, mx.array(x), mx.array(labels))
                stepped = zip(weights, gradients, strict=True)
                weights = [weight - task.learning_rate * gradient for weight, gradient in stepped]
                mx.eval(weights, loss)
                losses.append(loss.item())
            chosen = mx.argmax(compute_logits(weights, test_x), axis=1)
            report(mean_loss(losses, len(order)), np.array(chosen))
    return tuple(map(np.array, first))


def build(forward: ActivationName) -> Logits:
    """Return the network as a function of its weights and an input."""
    activation = xg.activation(forward)

    def compute_logits(weights: Parameters, x: mx.array) -> mx.array:
        hidden_weight, hidden_bias, output_weight, output_bias = weights
        hidden = activation(x @ hidden_weight + hidden_bias)
        return hidden @ output_weight + output_bias

    return compute_logits


def build_loss(compute_logits: Logits) -> Callable[..., mx.array]:
    """Return the mean cross entropy as a function of the weights and a batch."""

    def compute_loss(weights: Parameters, x: mx.array, labels: mx.array) -> mx.array:
        return nn.losses.cross_entropy(compute_logits(weights, x), labels, reduction="mean")

    return compute_loss
