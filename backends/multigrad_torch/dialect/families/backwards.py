"""Torch's dialect, derivatives that aten has functions for, of what forward has kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from multigrad.graph.ir.types import dtype_name
from multigrad.trace.trace import Value, cast
from multigrad.trace.xp import all as xp

Tensor = Any
ATEN = torch.ops.aten


def softmax(grad_output: Tensor, output: Tensor, dim: int, input_dtype: Any) -> Tensor:
    shared = xp.multiply(grad_output, output)
    total = xp.sum(shared, axis=dim, keepdims=True)
    return _as(xp.subtract(shared, xp.multiply(output, total)), input_dtype)


def log_softmax(grad_output: Tensor, output: Tensor, dim: int, input_dtype: Any) -> Tensor:
    total = xp.sum(grad_output, axis=dim, keepdims=True)
    return _as(xp.subtract(grad_output, xp.multiply(xp.exp(output), total)), input_dtype)


def _as(gradient: Tensor, dtype: Any) -> Tensor:
    same = isinstance(gradient, Value) and gradient.node.type.dtype == dtype_name(dtype)
    return gradient if same else cast(gradient, dtype_name(dtype))


def sigmoid(grad_output: Tensor, output: Tensor) -> Tensor:
    return xp.multiply(grad_output, xp.multiply(output, xp.subtract(1, output)))


def tanh(grad_output: Tensor, output: Tensor) -> Tensor:
    return xp.multiply(grad_output, xp.subtract(1, xp.square(output)))


def silu(grad_output: Tensor, self: Tensor) -> Tensor:
    s = xp.sigmoid(self)
    return xp.multiply(grad_output, s * (1 + self * (1 - s)))


def gelu(grad_output: Tensor, self: Tensor, *, approximate: str = "none") -> Tensor:
    x = self
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
        t = xp.tanh(inner)
        return xp.multiply(grad_output, 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)
    below = 0.5 * (1 + xp.erf(x / math.sqrt(2)))
    density = xp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return xp.multiply(grad_output, below + x * density)


def threshold(grad_output: Tensor, self: Tensor, threshold: Any) -> Tensor:
    return xp.where(xp.less_equal(self, threshold), 0, grad_output)


def leaky_relu(
    grad_output: Tensor, self: Tensor, negative_slope: Any, self_is_result: bool
) -> Tensor:
    return xp.where(self > 0, grad_output, xp.multiply(grad_output, negative_slope))


# By the name of the operator in aten.
BACKWARDS: dict[str, Callable[..., Tensor]] = {
    "_softmax_backward_data": softmax,
    "_log_softmax_backward_data": log_softmax,
    "sigmoid_backward": sigmoid,
    "tanh_backward": tanh,
    "silu_backward": silu,
    "gelu_backward": gelu,
    "threshold_backward": threshold,
    "leaky_relu_backward": leaky_relu,
}
PRIVATE: dict[Any, Callable[..., Any]] = {
    **{getattr(ATEN, name): made for name, made in BACKWARDS.items()},
    **{getattr(ATEN, name).default: made for name, made in BACKWARDS.items()},
    **{getattr(torch, name): made for name, made in BACKWARDS.items() if hasattr(torch, name)},
}
