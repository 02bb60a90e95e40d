"""Paddle's rows of the activations: op to callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
import paddle.nn.functional as F

from multigrad.backend import SELU_ALPHA, SELU_SCALE, Op, rows_of

from .elementwise import exp, mul
from .widening import Tensor, rounded, widened


@widened
def relu(x: Tensor) -> Tensor:
    return paddle.maximum(x, paddle.zeros_like(x))  # F.relu (3.3) makes 0 of NaN


@widened
def softplus(x: Tensor) -> Tensor:
    # F.softplus returns x above its threshold, and is log(1 + exp(x)) below.
    return paddle.maximum(x, paddle.zeros_like(x)) + paddle.log1p(exp(-paddle.abs(x)))


@widened
def log_sigmoid(x: Tensor) -> Tensor:
    return paddle.minimum(x, paddle.zeros_like(x)) - paddle.log1p(exp(-paddle.abs(x)))


def heaviside(x: Tensor) -> Tensor:
    return rounded((x > 0), x.dtype)


@widened
def leaky_relu(x: Tensor, *, slope: float) -> Tensor:
    return paddle.where(x > 0, x, mul(slope, x))  # which keeps the sign of zero


@widened
def elu(x: Tensor, *, alpha: float) -> Tensor:
    # What is not chosen must not overflow.
    return paddle.where(x > 0, x, alpha * paddle.expm1(paddle.minimum(x, paddle.zeros_like(x))))


@widened
def selu(x: Tensor) -> Tensor:
    return SELU_SCALE * elu(x, alpha=SELU_ALPHA)


@widened
def sigmoid(x: Tensor) -> Tensor:
    return F.sigmoid(x)


OPS: dict[Op, Callable[..., Any]] = rows_of(vars())
