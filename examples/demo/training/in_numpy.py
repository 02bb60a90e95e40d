"""The training loop in plain NumPy: `xg.lower` gives the activation, the layers are written out."""

from __future__ import annotations

from typing import Any

import numpy as np

import multigrad as xg

from ..task import ActivationName, EpochReport, Task, Weights, batches, first_batch, mean_loss


def describe() -> str:
    return f"NumPy {np.__version__}"


def train(task: Task, forward: ActivationName, rule: str | None, report: EpochReport) -> Weights:
    activation = xg.lower(rule, "numpy", forward=forward)
    weights = task.weights
    _, first = differentiate(activation, weights, *first_batch(task))
    for order in task.orders:
        losses = []
        for x, labels in batches(task, order):
            loss, gradients = differentiate(activation, weights, x, labels)
            weights = step(weights, gradients, task.learning_rate)
            losses.append(loss)
        report(mean_loss(losses, len(order)), predict(activation, weights, task.test_x))
    return first


def differentiate(
    activation: Any, weights: Weights, x: np.ndarray, labels: np.ndarray
) -> tuple[np.float32, Weights]:
    """Return the mean cross entropy and its gradient with respect to each weight."""
    hidden_weight, hidden_bias, output_weight, output_bias = weights
    hidden, pullback = activation.vjp(x @ hidden_weight + hidden_bias)
    loss, logits_bar = cross_entropy(hidden @ output_weight + output_bias, labels)
    tin_bar = pullback(logits_bar @ output_weight.T)
    return loss, (x.T @ tin_bar, tin_bar.sum(0), hidden.T @ logits_bar, logits_bar.sum(0))


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> tuple[np.float32, np.ndarray]:
    """Return the mean cross entropy and its gradient with respect to the logits."""
    rows = np.arange(len(labels))
    shifted = logits - logits.max(1, keepdims=True)
    exponentials = np.exp(shifted)
    totals = exponentials.sum(1, keepdims=True)
    loss = (np.log(totals[:, 0]) - shifted[rows, labels]).mean()
    gradient = exponentials / totals
    gradient[rows, labels] -= np.float32(1)
    return loss, gradient / np.float32(len(labels))


def step(weights: Weights, gradients: Weights, learning_rate: float) -> Weights:
    rate = np.float32(learning_rate)
    stepped = zip(weights, gradients, strict=True)
    return tuple(weight - rate * gradient for weight, gradient in stepped)


def predict(activation: Any, weights: Weights, x: np.ndarray) -> np.ndarray:
    hidden_weight, hidden_bias, output_weight, output_bias = weights
    hidden = activation(x @ hidden_weight + hidden_bias)
    return np.argmax(hidden @ output_weight + output_bias, axis=1)
