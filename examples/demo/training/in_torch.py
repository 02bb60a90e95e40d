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


def train(task: Task, forward: ActivationName, rule: str | None, report: EpochReport) -> Weights:
    with backward_rule(rule):
        return fit(build(task.weights, xg.Activation(forward)), task, report)


def build(weights: Weights, activation: torch.nn.Module) -> torch.nn.Sequential:
    """Build the network with the given weights, which `Linear` keeps transposed."""
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, HIDDEN), activation, torch.nn.Linear(HIDDEN, CLASSES)
    )
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(weight.T))
    return model


def fit(model: torch.nn.Sequential, task: Task, report: EpochReport) -> Weights:
    """Run the epochs; return the first gradients, in the layout of `Weights`."""
    _, first = differentiate(model, *first_batch(task))
    for order in task.orders:
        losses = []
        for x, labels in batches(task, order):
            loss, gradients = differentiate(model, x, labels)
            # The step of torch.optim.SGD, which imports a compiler for 3 s when it is first made.
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter.add_(gradient, alpha=-task.learning_rate)
            losses.append(loss.item())
        report(mean_loss(losses, len(order)), predict(model, task.test_x))
    return tuple(gradient.numpy().T for gradient in first)


def differentiate(
    model: torch.nn.Sequential, x: np.ndarray, labels: np.ndarray
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return the mean cross entropy and its gradient with respect to each parameter."""
    loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(labels))
    return loss, torch.autograd.grad(loss, list(model.parameters()))


def predict(model: torch.nn.Sequential, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(x)).argmax(1).numpy()
