"""The training loop in PyTorch: `xg.Activation` is a layer, `xg.use` chooses its backward."""

from __future__ import annotations

import numpy as np
import torch

import multigrad as xg

from ..task import (
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


def describe() -> str:
    return f"PyTorch {torch.__version__}"


def first_gradients(task: Task, forward: ActivationName, rule: str | None) -> Weights:
    model = build(task.weights, xg.Activation(forward))
    with backward_rule(rule):
        return differentiate(model, task)


def train(task: Task, forward: ActivationName, rule: str | None, report: EpochReport) -> None:
    model = build(task.weights, xg.Activation(forward))
    with backward_rule(rule):
        fit(model, task, report)


def build(weights: Weights, activation: torch.nn.Module) -> torch.nn.Sequential:
    """Build the network with the given weights, which `Linear` keeps transposed."""
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, HIDDEN), activation, torch.nn.Linear(HIDDEN, CLASSES)
    )
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(weight.T))
    return model


def differentiate(model: torch.nn.Sequential, task: Task) -> Weights:
    """Return the gradients of the first batch, in the layout of `Weights`."""
    x, labels = first_batch(task)
    loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(labels))
    first, second, third, fourth = torch.autograd.grad(loss, list(model.parameters()))
    return first.numpy().T, second.numpy(), third.numpy().T, fourth.numpy()


def fit(model: torch.nn.Sequential, task: Task, report: EpochReport) -> None:
    """Run the epochs, as any PyTorch program does."""
    optimizer = torch.optim.SGD(model.parameters(), lr=task.learning_rate)
    for order in task.orders:
        losses = []
        for x, labels in batches(task, order):
            optimizer.zero_grad()
            logits = model(torch.from_numpy(x))
            loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        report(mean_loss(losses, len(order)), predict(model, task.test_x))


def predict(model: torch.nn.Sequential, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(x)).argmax(1).numpy()
