"""What each activation means, in NumPy: 16-bit values are computed in float32 and rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np

from .meaning import erfc, widened

Array = Any  # numpy.ndarray or a NumPy scalar
# Klambauer et al. (2017), equation 14: the fixed point of mean 0 and variance 1.
SELU_ALPHA = 1.6732632423543772848
SELU_SCALE = 1.0507009873554804934


@widened
def sigmoid(x: Array) -> Array:
    # exp of a non-positive number only, so nothing overflows
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


@widened
def log_sigmoid(x: Array) -> Array:
    return np.minimum(x, x.dtype.type(0)) - np.log1p(np.exp(-np.abs(x)))


@widened
def logit(x: Array) -> Array:
    return np.log(x) - np.log1p(-x)


def relu(x: Array) -> Array:
    return np.maximum(x, x.dtype.type(0))


def relu6(x: Array) -> Array:
    return np.minimum(np.maximum(x, x.dtype.type(0)), x.dtype.type(6))


@widened
def leaky_relu(x: Array, *, slope: float) -> Array:
    return np.where(x >= 0, x, x * x.dtype.type(slope))


@widened
def elu(x: Array, *, alpha: float) -> Array:
    return np.where(x > 0, x, x.dtype.type(alpha) * np.expm1(np.minimum(x, 0)))


@widened
def celu(x: Array, *, alpha: float) -> Array:
    scale = x.dtype.type(alpha)
    return np.where(x > 0, x, scale * np.expm1(np.minimum(x, 0) / scale))


@widened
def selu(x: Array) -> Array:
    number = x.dtype.type
    below = number(SELU_SCALE * SELU_ALPHA) * np.expm1(np.minimum(x, 0))
    return np.where(x > 0, number(SELU_SCALE) * x, below)


@widened
def gelu(x: Array, *, approximate: bool) -> Array:
    one = x.dtype.type
    if approximate:
        inner = one(np.sqrt(2 / np.pi)) * (x + one(0.044715) * x * x * x)
        return x * (one(0.5) * (one(1) + np.tanh(inner)))
    return x * (one(0.5) * erfc(-x * one(np.sqrt(0.5))))


@widened
def silu(x: Array) -> Array:
    return x * sigmoid(x)


@widened
def mish(x: Array) -> Array:
    return x * np.tanh(softplus(x))


@widened
def softplus(x: Array) -> Array:
    return np.maximum(x, x.dtype.type(0)) + np.log1p(np.exp(-np.abs(x)))


@widened
def squareplus(x: Array, *, b: float) -> Array:
    # the square is not formed, and below zero the two terms would cancel
    root = np.hypot(x, x.dtype.type(np.sqrt(b)))
    half, size = x.dtype.type(0.5), np.abs(x)
    return np.where(x >= 0, half * x + half * root, x.dtype.type(0.5 * b) / (size + root))


@widened
def sparse_plus(x: Array) -> Array:
    inside = np.clip(x, -1, 1) + x.dtype.type(1)
    return np.where(x >= 1, x, x.dtype.type(0.25) * inside * inside)


@widened
def sparse_sigmoid(x: Array) -> Array:
    return x.dtype.type(0.5) * (np.clip(x, -1, 1) + x.dtype.type(1))


@widened
def soft_sign(x: Array) -> Array:
    return x / (1 + np.abs(x))


@widened
def tanh_shrink(x: Array) -> Array:
    return x - np.tanh(x)


@widened
def soft_shrink(x: Array, *, lambd: float) -> Array:
    width = x.dtype.type(lambd)
    inside = (x >= -width) & (x <= width)
    return np.where(inside, x.dtype.type(0), x - np.copysign(width, x))


@widened
def hard_shrink(x: Array, *, lambd: float) -> Array:
    width = x.dtype.type(lambd)
    return np.where((x >= -width) & (x <= width), x.dtype.type(0), x)


@widened
def threshold(x: Array, *, threshold: float, default: float) -> Array:
    return np.where(x <= x.dtype.type(threshold), x.dtype.type(default), x)


@widened
def hard_tanh(x: Array, *, min: float, max: float) -> Array:
    return np.minimum(np.maximum(x, x.dtype.type(min)), x.dtype.type(max))


@widened
def hard_sigmoid(x: Array) -> Array:
    number = x.dtype.type
    return np.minimum(np.maximum(x + number(3), number(0)), number(6)) / number(6)


@widened
def hard_silu(x: Array) -> Array:
    return x * hard_sigmoid(x)


def heaviside(x: Array) -> Array:
    """1 above zero, else 0; NaN gives 0, as `(x > 0)` does."""
    return (x > x.dtype.type(0)).astype(x.dtype)
