"""Torch's rows of the array family: op to callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from multigrad.ir import ops
from multigrad.ir.ops import Op

from . import random

Tensor: TypeAlias = torch.Tensor
Axis = int | tuple[int, ...] | None


def _dims(x: Tensor, axis: Axis) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(x.ndim))
    return axis if isinstance(axis, tuple) else (axis,)


def sum_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return torch.sum(x) if axis is None and not keepdims else torch.sum(x, _dims(x, axis), keepdims)


def mean(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    if axis is None and not keepdims:
        return torch.mean(x)
    return torch.mean(x, _dims(x, axis), keepdims)


def max_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return torch.amax(x, _dims(x, axis), keepdims)


def min_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return torch.amin(x, _dims(x, axis), keepdims)


def any_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return torch.any(x) if axis is None and not keepdims else torch.any(x, _dims(x, axis), keepdims)


def all_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return torch.all(x) if axis is None and not keepdims else torch.all(x, _dims(x, axis), keepdims)


def norm(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return torch.linalg.vector_norm(x, 2, axis, keepdims)


def var(x: Tensor, *, axis: Axis, keepdims: bool, correction: float) -> Tensor:
    return torch.var(x, _dims(x, axis), correction=correction, keepdim=keepdims)


def std(x: Tensor, *, axis: Axis, keepdims: bool, correction: float) -> Tensor:
    return torch.std(x, _dims(x, axis), correction=correction, keepdim=keepdims)


def sum_to(x: Tensor, like: Tensor) -> Tensor:
    return x.sum_to_size(like.shape)


def broadcast_to(x: Tensor, like: Tensor) -> Tensor:
    return x.expand(like.shape)


def expand_dims(x: Tensor, *, axis: int) -> Tensor:
    return x.unsqueeze(axis)


def dim(x: Tensor, *, axis: int) -> int:
    return x.shape[axis]


def size(x: Tensor) -> int:
    return x.numel()


def fold_in(key: Any, *, n: int) -> Any:
    return random.fold_in(key, n)


OPS: dict[Op, Callable[..., Any]] = {
    ops.SUM: sum_,
    ops.MEAN: mean,
    ops.MAX: max_,
    ops.MIN: min_,
    ops.ANY: any_,
    ops.ALL: all_,
    ops.NORM: norm,
    ops.VAR: var,
    ops.STD: std,
    ops.SUM_TO: sum_to,
    ops.BROADCAST_TO: broadcast_to,
    ops.EXPAND_DIMS: expand_dims,
    ops.DIM: dim,
    ops.SIZE: size,
    ops.FOLD_IN: fold_in,
    ops.UNIFORM_LIKE: random.uniform_like,
    ops.NORMAL_LIKE: random.normal_like,
}
