"""Paddle's rows of the activations: op to callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
import paddle.nn.functional as F

from multigrad.backend import Op, rows_of

from .elementwise import mul
from .widening import Tensor, rounded, widened


@widened
def relu(x: Tensor) -> Tensor:
    return paddle.maximum(x, paddle.zeros_like(x))  # F.relu (3.3) makes 0 of NaN


def heaviside(x: Tensor) -> Tensor:
    return rounded((x > 0), x.dtype)


@widened
def leaky_relu(x: Tensor, *, slope: float) -> Tensor:
    return paddle.where(x > 0, x, mul(slope, x))  # which keeps the sign of zero


@widened
def sigmoid(x: Tensor) -> Tensor:
    return F.sigmoid(x)


OPS: dict[Op, Callable[..., Any]] = rows_of(vars())
