"""Paddle's rows of the activations: op to callable."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import paddle
import paddle.nn.functional as F

from multigrad.backend import Op, ops, rows_of

from .elementwise import clip, copysign, exp, hypot, mul, where
from .special import ROOT_HALF, erfc
from .widening import Tensor, rounded, widened

SELU_ALPHA, SELU_SCALE = ops.activations.SELU_ALPHA, ops.activations.SELU_SCALE
GELU_SCALE = math.sqrt(2 / math.pi)


@widened
def relu(x: Tensor) -> Tensor:
    return paddle.maximum(x, paddle.zeros_like(x))  # F.relu (3.3) makes 0 of NaN


@widened
def relu6(x: Tensor) -> Tensor:
    return clip(x, 0.0, 6.0)


@widened
def softplus(x: Tensor) -> Tensor:
    # F.softplus returns x above its threshold, and is log(1 + exp(x)) below.
    return paddle.maximum(x, paddle.zeros_like(x)) + paddle.log1p(exp(-paddle.abs(x)))


@widened
def log_sigmoid(x: Tensor) -> Tensor:
    return paddle.minimum(x, paddle.zeros_like(x)) - paddle.log1p(exp(-paddle.abs(x)))


@widened
def logit(x: Tensor) -> Tensor:
    return paddle.log(x) - paddle.log1p(-x)


def heaviside(x: Tensor) -> Tensor:
    return rounded((x > 0), x.dtype)


@widened
def leaky_relu(x: Tensor, *, slope: float) -> Tensor:
    return paddle.where(x > 0, x, mul(slope, x))


def exponential_below(x: Tensor, scale: float = 1.0, alpha: float = 1.0) -> Tensor:
    """x above 0; below, what elu makes of it. What is not chosen must not overflow."""
    below = mul(scale, paddle.expm1(paddle.minimum(x, paddle.zeros_like(x)) / alpha))
    return paddle.where(x > 0, x, below)


@widened
def elu(x: Tensor, *, alpha: float) -> Tensor:
    return exponential_below(x, alpha)


@widened
def celu(x: Tensor, *, alpha: float) -> Tensor:
    return exponential_below(x, alpha, alpha)


@widened
def selu(x: Tensor) -> Tensor:
    return mul(SELU_SCALE, exponential_below(x, SELU_ALPHA))


def gelu(x: Tensor, *, approximate: bool) -> Tensor:
    @widened
    def tanh_form(x: Tensor) -> Tensor:
        inner = GELU_SCALE * (x + 0.044715 * x * x * x)
        return mul(0.5, x) * (1.0 + paddle.tanh(inner))

    @widened
    def exact(x: Tensor) -> Tensor:
        return mul(0.5, x) * erfc(-ROOT_HALF * x)

    return tanh_form(x) if approximate else exact(x)


@widened
def sigmoid(x: Tensor) -> Tensor:
    return F.sigmoid(x)


@widened
def silu(x: Tensor) -> Tensor:
    return x * F.sigmoid(x)


@widened
def mish(x: Tensor) -> Tensor:
    return x * paddle.tanh(softplus(x))


@widened
def squareplus(x: Tensor, *, b: float) -> Tensor:
    # The square is not formed, and below zero the two terms would cancel.
    root = hypot(x, b**0.5)
    return paddle.where(x >= 0, 0.5 * x + 0.5 * root, 0.5 * b / (paddle.abs(x) + root))


@widened
def sparse_plus(x: Tensor) -> Tensor:
    inside = clip(x, -1.0, 1.0) + 1.0
    return paddle.where(x >= 1.0, x, 0.25 * inside * inside)


@widened
def soft_shrink(x: Tensor, *, lambd: float) -> Tensor:
    inside = (x >= -lambd) & (x <= lambd)
    return where(inside, 0.0, x - copysign(lambd, x))


@widened
def hard_shrink(x: Tensor, *, lambd: float) -> Tensor:
    return where((x >= -lambd) & (x <= lambd), 0.0, x)


@widened
def threshold(x: Tensor, *, threshold: float, default: float) -> Tensor:
    return where(x <= threshold, default, x)


OPS: dict[Op, Callable[..., Any]] = rows_of(vars())
