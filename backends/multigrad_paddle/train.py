"""The demo's training loop in Paddle: layers around an activation, `xg.use` around the steps."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import paddle
from paddle import nn

import multigrad as xg
from multigrad.demo.task import (
    CLASSES,
    FEATURES,
    HIDDEN,
    ActivationName,
    EpochReport,
    Task,
    Weights,
    backward_rule,
    batches,
    first_batch,
    mean_loss,
)


class Network(nn.Layer):
    """Two linear layers around an activation."""

    def __init__(self, forward: ActivationName, weights: Weights) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)
        self.activation = xg.activation(forward)
        for parameter, weight in zip(self.parameters(), weights, strict=True):
            parameter.set_value(weight)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return the logits."""
        return self.last(self.activation(self.first(x)))


def describe() -> str:
    """Return what runs here and in which version."""
    return f"PaddlePaddle {version('paddlepaddle')} on {paddle.get_device()}"


def first_gradients(task: Task, forward: ActivationName, rule: str | None) -> Weights:
    """Return the gradients of the first batch at the initial weights."""
    network = Network(forward, task.weights)
    with backward_rule(rule):
        loss = compute_loss(network, *first_batch(task))
        gradients = paddle.grad(loss, network.parameters())
    first, second, third, fourth = (gradient.numpy() for gradient in gradients)
    return first, second, third, fourth


def train(task: Task, forward: ActivationName, rule: str | None, report: EpochReport) -> None:
    """Train with SGD; report each epoch."""
    network = Network(forward, task.weights)
    optimizer = paddle.optimizer.SGD(task.learning_rate, parameters=network.parameters())
    test_x = paddle.to_tensor(task.test_x)
    with backward_rule(rule):
        for order in task.orders:
            losses = []
            for x, labels in batches(task, order):
                loss = compute_loss(network, x, labels)
                loss.backward()
                optimizer.step()
                optimizer.clear_grad()
                losses.append(loss.item())
            report(mean_loss(losses, len(order)), paddle.argmax(network(test_x), axis=1).numpy())


def compute_loss(network: Network, x: np.ndarray, labels: np.ndarray) -> paddle.Tensor:
    """Return the mean cross entropy of a batch."""
    logits = network(paddle.to_tensor(x))
    return nn.functional.cross_entropy(logits, paddle.to_tensor(labels))
