"""The task that every framework gets: data, initial weights and batches, all of them NumPy arrays.

Nothing random is left to a framework, so that two runs differ by rounding alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

import multigrad as xg
from multigrad.core.lowering.forwards import ActivationName

Tensor = Any

Weights = tuple[np.ndarray, ...]
"""Hidden weight (64, 64), hidden bias (64,), output weight (64, 10), output bias (10,)."""

EpochReport = Callable[[float, np.ndarray], None]
"""Called by a training loop after each epoch with the mean loss and the predicted test labels."""

FORWARDS: tuple[ActivationName, ...] = ("Logistic", "Heaviside")
FEATURES, HIDDEN, CLASSES = 64, 64, 10
BATCH = 64
EPOCHS, LEARNING_RATE = 100, 0.05
# After 10 epochs at the usual rate Logistic is at 0.46 with its own derivative, at 0.86 with this.
# With more (0.5; 0.3 and 15 epochs) rounding moves up to 7 predictions instead of 3, over 20 seeds.
QUICK_EPOCHS, QUICK_LEARNING_RATE = 10, 0.3
PIXEL_MAX = 16.0


@dataclass(frozen=True, slots=True)
class Task:
    """Everything that a training loop reads."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    weights: Weights
    orders: tuple[np.ndarray, ...]
    """One permutation of the training samples per epoch."""
    learning_rate: float = LEARNING_RATE


def load_task(epochs: int, seed: int, learning_rate: float = LEARNING_RATE) -> Task:
    """Load the digits, draw the weights, then the order of the samples in each epoch."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    scaled = (pixels / PIXEL_MAX).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(
        scaled, labels.astype(np.int64), test_size=0.2, random_state=0
    )
    generator = np.random.default_rng(seed)
    weights = draw_weights(generator)
    orders = tuple(generator.permutation(len(train_x)) for _ in range(epochs))
    test = {"test_x": test_x, "test_y": test_y}
    drawn = {"weights": weights, "orders": orders}
    return Task(train_x, train_y, **test, **drawn, learning_rate=learning_rate)


def draw_weights(generator: np.random.Generator) -> Weights:
    """Draw uniform weights below 1 / sqrt(64) in size, which suits both layers."""
    bound = 1.0 / np.sqrt(FEATURES)
    shapes = ((FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
    return tuple(generator.uniform(-bound, bound, shape).astype(np.float32) for shape in shapes)


def batches(task: Task, order: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the batches of one epoch; the last one is smaller."""
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        yield task.train_x[chosen], task.train_y[chosen]


def first_batch(task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Return the batch on which the first gradients are compared."""
    return next(batches(task, task.orders[0]))


def mean_loss(losses: Sequence[Tensor], samples: int) -> float:
    """Return the mean over an epoch's samples, given the mean of each batch."""
    sizes = np.full(len(losses), BATCH)
    sizes[-1] = samples - BATCH * (len(losses) - 1)
    return float(np.average(np.asarray(losses, dtype=np.float64), weights=sizes))


def backward_rule(rule: str | None) -> AbstractContextManager[object]:
    """Return the context in which `rule` is in force; None is the true derivative."""
    return nullcontext() if rule is None else xg.use(rule)
