"""MLX's rows of the activations: op to callable."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx

from multigrad.backend import SELU_ALPHA, SELU_SCALE, rows_of

from .elementwise import clip, exp, hypot, widened
from .error_functions import ndtr

Tensor = Any


def size(x: Tensor) -> Tensor:
    """|x|, whose own derivative at 0 is that from above."""
    return mx.where(x < 0, -x, x)


@widened
def sigmoid(x: Tensor) -> Tensor:
    small = exp(-size(x))  # MLX's own is off by 15 eps, and a float32 one in float64
    return mx.where(x < 0, small, 1.0) / (1.0 + small)


@widened
def softplus(x: Tensor) -> Tensor:
    return mx.where(x < 0, 0.0, x) + mx.log1p(exp(-size(x)))


def log_sigmoid(x: Tensor) -> Tensor:
    return -softplus(-x)


@widened
def logit(x: Tensor) -> Tensor:
    return mx.log(x) - mx.log1p(-x)


@widened
def silu(x: Tensor) -> Tensor:
    return x * sigmoid(x)


@widened
def mish(x: Tensor) -> Tensor:
    return x * mx.tanh(softplus(x))


def heaviside(x: Tensor) -> Tensor:
    return (x > 0).astype(x.dtype)


def relu(x: Tensor) -> Tensor:
    return mx.maximum(x, 0.0)


def relu6(x: Tensor) -> Tensor:
    return clip(x, 0.0, 6.0)


def leaky_relu(x: Tensor, *, slope: float) -> Tensor:
    return mx.where(x > 0, x, slope * x)


@widened
def elu(x: Tensor, *, alpha: float) -> Tensor:
    return mx.where(x >= 0, x, alpha * mx.expm1(mx.minimum(x, 0.0)))


@widened
def celu(x: Tensor, *, alpha: float) -> Tensor:
    return mx.where(x > 0, x, alpha * mx.expm1(mx.minimum(x, 0.0) / alpha))


@widened
def selu(x: Tensor) -> Tensor:
    below = SELU_SCALE * SELU_ALPHA * mx.expm1(mx.minimum(x, 0.0))
    return mx.where(x > 0, SELU_SCALE * x, below)


@widened
def gelu(x: Tensor, *, approximate: bool) -> Tensor:
    if approximate:
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1.0 + mx.tanh(inner))
    return x * ndtr(x)


@widened
def squareplus(x: Tensor, *, b: float) -> Tensor:
    # The square is not formed, and below zero the two terms would cancel.
    half = 0.5 * x
    root = hypot(half, mx.array(0.5 * b**0.5, x.dtype))
    return mx.where(x >= 0, half + root, 0.5 * b / (mx.abs(x) + 2.0 * root))


@widened
def sparse_plus(x: Tensor) -> Tensor:
    inside = clip(x, -1.0, 1.0) + 1.0
    return mx.where(x >= 1.0, x, 0.25 * inside * inside)


@widened
def soft_shrink(x: Tensor, *, lambd: float) -> Tensor:
    inside = (x >= -lambd) & (x <= lambd)
    return mx.where(inside, 0.0, x - mx.where(x < 0, -lambd, lambd))


@widened
def hard_shrink(x: Tensor, *, lambd: float) -> Tensor:
    return mx.where((x >= -lambd) & (x <= lambd), 0.0, x)


def threshold(x: Tensor, *, threshold: float, default: float) -> Tensor:
    return mx.where(x <= threshold, default, x)


OPS = rows_of(vars())
