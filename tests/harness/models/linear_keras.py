"""A linear Keras model with known weights, and what steps of SGD make of them, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Ruled: TypeAlias = Callable[..., Any]

X = np.random.default_rng(1).normal(size=(16, 4)).astype(np.float32)
Y = np.random.default_rng(2).normal(size=(16, 3)).astype(np.float32)
W = np.random.default_rng(3).normal(size=(4, 3)).astype(np.float32)
RATE = 0.125


def linear(optimizer: Any, layers: tuple[Any, ...] = (), **options: Any) -> Any:
    """Give a compiled model x @ w + b with the initial weights W and 0."""
    import keras

    dense = keras.layers.Dense(3)
    model = keras.Sequential([keras.Input((4,)), *layers, dense])
    model.compile(optimizer, "mse", **options)
    dense.set_weights([W, np.zeros(3)])
    return model


def gradients(weights: list[Array], rows: slice = slice(None)) -> list[Array]:
    """Give the gradients of the mean squared error of x @ w + b, in float64."""
    x, y = X[rows].astype(np.float64), Y[rows].astype(np.float64)
    error = 2 * (x @ weights[0] + weights[1] - y) / y.size
    return [x.T @ error, error.sum(0)]


def step(rule: Callable[[Array], Array], steps: int = 1) -> list[Array]:
    """Give the weights after some steps of SGD on all the data."""
    weights = [W.astype(np.float64), np.zeros(3)]
    for _ in range(steps):
        weights = [w - RATE * rule(g) for w, g in zip(weights, gradients(weights), strict=True)]
    return weights


def train(model: Any, epochs: int = 1, batch_size: int = 16, **options: Any) -> list[Array]:
    model.fit(X, Y, epochs=epochs, batch_size=batch_size, shuffle=False, verbose=0, **options)
    return model.get_weights()


def assert_close(found: list[Any], expected: list[Any], tolerance: float = 1e-6) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


def clip(g: Array, max_norm: float = 0.1) -> Array:
    return g * min(1.0, max_norm / np.linalg.norm(g))


def sgd(**options: Any) -> Any:
    import keras

    return keras.optimizers.SGD(RATE, **options)
