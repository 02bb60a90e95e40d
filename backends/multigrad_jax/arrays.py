"""JAX's rows of the array family: op to callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from multigrad.ir import ops
from multigrad.ir.ops import Op

from . import random
from .elementwise import accumulated

Tensor = Any
Axis = int | tuple[int, ...] | None


def over(x: Tensor, axis: Axis) -> Axis:
    """The axes to reduce over: none of a scalar, whichever are asked for."""
    return () if x.ndim == 0 else axis


def sum_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return jnp.sum(x, axis=over(x, axis), keepdims=keepdims)  # accumulates 16-bit floats in float32


def mean(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return jnp.mean(x, axis=over(x, axis), keepdims=keepdims)


def max_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return jnp.max(x, axis=over(x, axis), keepdims=keepdims)


def min_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return jnp.min(x, axis=over(x, axis), keepdims=keepdims)


def any_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return jnp.any(x, axis=over(x, axis), keepdims=keepdims)


def all_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return jnp.all(x, axis=over(x, axis), keepdims=keepdims)


def norm(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    wide = accumulated(x)
    return jnp.sqrt(jnp.sum(wide * wide, axis=over(x, axis), keepdims=keepdims)).astype(x.dtype)


def var(x: Tensor, *, axis: Axis, keepdims: bool, correction: float) -> Tensor:
    wide = accumulated(x)
    return jnp.var(wide, axis=over(x, axis), ddof=correction, keepdims=keepdims).astype(x.dtype)


def std(x: Tensor, *, axis: Axis, keepdims: bool, correction: float) -> Tensor:
    wide = accumulated(x)
    return jnp.std(wide, axis=over(x, axis), ddof=correction, keepdims=keepdims).astype(x.dtype)


def sum_to(x: Tensor, like: Tensor) -> Tensor:
    lead = x.ndim - like.ndim
    ones = [lead + i for i, n in enumerate(like.shape) if n == 1 != x.shape[lead + i]]
    axes = (*range(lead), *ones)
    return jnp.sum(x, axis=axes, keepdims=True).reshape(like.shape) if axes else x


def broadcast_to(x: Tensor, like: Tensor) -> Tensor:
    return jnp.broadcast_to(x, like.shape)


def expand_dims(x: Tensor, *, axis: int) -> Tensor:
    return jnp.expand_dims(x, axis)


def dim(x: Tensor, *, axis: int) -> int:
    return x.shape[axis]


def size(x: Tensor) -> int:
    return x.size


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
