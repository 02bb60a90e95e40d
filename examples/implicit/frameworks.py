"""What the examples of this folder share: a gradient on every framework that is installed."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec

import numpy as np

import multigrad as xg


def make_tensor(framework: str, values: np.ndarray):
    """Return the framework's own tensor, in float64."""
    if framework == "torch":
        import torch

        return torch.tensor(values)
    if framework == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
        return jax.numpy.asarray(values)
    if framework == "tensorflow":
        import tensorflow as tf

        return tf.constant(values)
    return values


def gradients(
    f: Callable, arrays: tuple[np.ndarray, ...], cotangent: np.ndarray
) -> Iterator[tuple[str, np.ndarray, tuple[np.ndarray, ...]]]:
    """Yield each framework's name, the value of f and the gradients of its arguments."""
    for name in ("numpy", "torch", "jax", "tensorflow"):
        if find_spec(name) is None:
            continue
        y, pull = xg.vjp(f, *(make_tensor(name, x) for x in arrays))
        found = pull(make_tensor(name, cotangent))
        yield name, np.asarray(y), tuple(np.asarray(g) for g in found)


def distance(found: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...]) -> float:
    """Return the largest difference, relative to the largest number in each array."""
    pairs = zip(found, expected, strict=True)
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in pairs)
