"""Hand-written rivals in NumPy: functions `f(x)` that return the output and its pullback.

`plain` is what a careful person writes first; `hand-written` has no temporary that it can avoid.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Pullback: TypeAlias = Callable[[Array], Array]

BLOCK = 1 << 17
"""Elements that stay in the cache from one pass to the next: 512 KiB of float32."""


def plain_triangular(x: Array, width: float = 1.0) -> tuple[Array, Pullback]:
    """Keeps x; each step of the formula makes a new array."""

    def pull(grad_out: Array) -> Array:
        return grad_out * np.maximum(1 - np.abs(x) / width, 0)

    return (x > 0).astype(x.dtype), pull


def triangular(x: Array, width: float = 1.0) -> tuple[Array, Pullback]:
    """Works in place on one array, with a product for the division; blocks gained nothing here."""

    def pull(grad_out: Array) -> Array:
        factor = np.abs(x)
        factor *= -1 / width
        factor += 1
        np.maximum(factor, 0, out=factor)
        factor *= grad_out
        return factor

    return (x > 0).astype(x.dtype), pull


def plain_arctan(x: Array, alpha: float = 2.0) -> tuple[Array, Pullback]:
    """Keeps x; each step of the formula makes a new array."""

    def pull(grad_out: Array) -> Array:
        return grad_out * (alpha / 2 / (1 + (math.pi / 2 * alpha * x) ** 2))

    return (x > 0).astype(x.dtype), pull


def arctan(x: Array, alpha: float = 2.0) -> tuple[Array, Pullback]:
    """Divides by c + d x^2 in place, by blocks where the whole would leave the cache (-20 %)."""
    constant = 2 / alpha
    slope = constant * (math.pi / 2 * alpha) ** 2

    def divide(grad_out: Array, x: Array, out: Array) -> None:
        np.multiply(x, x, out=out)
        out *= slope
        out += constant
        np.divide(grad_out, out, out=out)

    def pull(grad_out: Array) -> Array:
        grad_in = np.empty_like(grad_out)
        if grad_in.size <= BLOCK:
            divide(grad_out, x, grad_in)
            return grad_in
        flat = grad_out.reshape(-1), x.reshape(-1), grad_in.reshape(-1)
        for start in range(0, grad_in.size, BLOCK):
            divide(*(array[start : start + BLOCK] for array in flat))
        return grad_in

    return (x > 0).astype(x.dtype), pull


def plain_rectangular(x: Array, a: float = -0.5, b: float = 0.5) -> tuple[Array, Pullback]:
    """Keeps x and asks for the window in backward."""

    def pull(grad_out: Array) -> Array:
        return grad_out * ((x >= a) & (x <= b))

    return np.maximum(x, 0), pull


def plain_step_rectangular(x: Array, a: float = -0.5, b: float = 0.5) -> tuple[Array, Pullback]:
    """The same window under a step."""
    return (x > 0).astype(x.dtype), plain_rectangular(x, a, b)[1]


def keep_mask(kept: Array) -> Pullback:
    """Return the product with a mask made of floats first: NumPy casts it in small pieces."""

    def pull(grad_out: Array) -> Array:
        grad_in = kept.astype(grad_out.dtype)
        grad_in *= grad_out
        return grad_in

    return pull


def find_window(x: Array, a: float, b: float) -> Array:
    """Return the mask of the window; the second comparison is the only temporary."""
    kept = x >= a
    kept &= x <= b
    return kept


def rectangular(x: Array, a: float = -0.5, b: float = 0.5) -> tuple[Array, Pullback]:
    """Keeps a byte per element."""
    return np.maximum(x, 0), keep_mask(find_window(x, a, b))


def step_rectangular(x: Array, a: float = -0.5, b: float = 0.5) -> tuple[Array, Pullback]:
    """The same window under a step."""
    return (x > 0).astype(x.dtype), keep_mask(find_window(x, a, b))


def plain_relu(x: Array) -> tuple[Array, Pullback]:
    """Keeps x and compares in backward."""

    def pull(grad_out: Array) -> Array:
        return grad_out * (x > 0)

    return np.maximum(x, 0), pull


def relu(x: Array) -> tuple[Array, Pullback]:
    """Keeps a byte per element."""
    return np.maximum(x, 0), keep_mask(x > 0)


def plain_clip_norm(x: Array, max_norm: float = 1.0, eps: float = 1e-12) -> tuple[Array, Pullback]:
    """Asks NumPy for the norm."""

    def pull(grad_out: Array) -> Array:
        return grad_out * np.minimum(max_norm / np.maximum(np.linalg.norm(grad_out), eps), 1)

    return x.copy(), pull


def clip_norm(x: Array, max_norm: float = 1.0, eps: float = 1e-12) -> tuple[Array, Pullback]:
    """Takes the norm by one dot product and the factor as a Python number; the output is a view."""

    def pull(grad_out: Array) -> Array:
        flat = grad_out.reshape(-1)
        return grad_out * min(max_norm / max(math.sqrt(flat.dot(flat)), eps), 1.0)

    return x.view(), pull


RIVALS = {
    ("Heaviside", "triangular"): {"plain": plain_triangular, "hand-written": triangular},
    ("ReLU", "rectangular"): {"plain": plain_rectangular, "hand-written": rectangular},
    ("Heaviside", "rectangular"): {
        "plain": plain_step_rectangular,
        "hand-written": step_rectangular,
    },
    ("Heaviside", "arctan"): {"plain": plain_arctan, "hand-written": arctan},
    ("ReLU", "d(ReLU)"): {"plain": plain_relu, "hand-written": relu},
    ("Linear", "clip_norm"): {"plain": plain_clip_norm, "hand-written": clip_norm},
}
