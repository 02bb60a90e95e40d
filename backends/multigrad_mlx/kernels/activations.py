"""MLX's rows of the activations: op to callable."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from multigrad.backend import rows_of

from .elementwise import exp, widened

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


def heaviside(x: Tensor) -> Tensor:
    return (x > 0).astype(x.dtype)


def relu(x: Tensor) -> Tensor:
    return mx.maximum(x, 0.0)


@widened
def elu(x: Tensor, *, alpha: float) -> Tensor:
    # mx.minimum of -0 and 0 is 0, which would lose the sign.
    return mx.where(x >= 0, x, alpha * mx.expm1(mx.minimum(x, 0.0)))


OPS = rows_of(vars())
