"""JAX's rows: op to callable. An op with a symbol that is left out is written infix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from multigrad.ir import ops
from multigrad.ir.ops import Op

from . import random

Tensor = Any
Axis = int | tuple[int, ...] | None


def clip(x: Tensor, min: Any, max: Any) -> Tensor:
    return jnp.minimum(jnp.maximum(x, min), max)


def cast(x: Tensor, *, dtype: Any) -> Tensor:
    return x.astype(dtype)


def full_like(x: Tensor, value: Any, *, dtype: Any = None) -> Tensor:
    return jnp.full_like(x, value, dtype=dtype)


def accumulated(x: Tensor) -> Tensor:
    """16-bit floats in float32, so that a reduction rounds once."""
    return x.astype(jnp.float32) if x.dtype.itemsize == 2 else x


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


def reciprocal(x: Tensor) -> Tensor:
    return 1 / x


def sigmoid(x: Tensor) -> Tensor:
    # XLA's 1 / (1 + exp(-x)) overflows in float16, and is 0, from -11 down.
    return jax.nn.sigmoid(x.astype(jnp.float32) if x.dtype == jnp.float16 else x).astype(x.dtype)


def heaviside(x: Tensor) -> Tensor:
    return (x > 0).astype(x.dtype)


def relu6(x: Tensor) -> Tensor:
    return jax.nn.relu6(x)


def leaky_relu(x: Tensor, *, slope: float) -> Tensor:
    return jax.nn.leaky_relu(x, slope)


def elu(x: Tensor, *, alpha: float) -> Tensor:
    return jax.nn.elu(x, alpha)


def gelu(x: Tensor, *, approximate: bool) -> Tensor:
    return jax.nn.gelu(accumulated(x), approximate=approximate).astype(x.dtype)


def fold_in(key: Any, *, n: int) -> Any:
    return random.fold_in(key, n)


OPS: dict[Op, Callable[..., Any]] = {
    ops.POW: jnp.power,
    ops.MAXIMUM: jnp.maximum,
    ops.MINIMUM: jnp.minimum,
    ops.ABS: jnp.abs,
    ops.SIGN: jnp.sign,
    ops.SQUARE: jnp.square,
    ops.SQRT: jnp.sqrt,
    ops.RSQRT: jax.lax.rsqrt,
    ops.RECIPROCAL: reciprocal,
    ops.FLOOR: jnp.floor,
    ops.CEIL: jnp.ceil,
    ops.ROUND: jnp.round,
    ops.TRUNC: jnp.trunc,
    ops.EXP: jnp.exp,
    ops.EXPM1: jnp.expm1,
    ops.LOG: jnp.log,
    ops.LOG1P: jnp.log1p,
    ops.SIN: jnp.sin,
    ops.COS: jnp.cos,
    ops.ATAN: jnp.arctan,
    ops.TANH: jnp.tanh,
    ops.ERF: jax.lax.erf,
    ops.ISNAN: jnp.isnan,
    ops.ISINF: jnp.isinf,
    ops.ISFINITE: jnp.isfinite,
    ops.CLIP: clip,
    ops.WHERE: jnp.where,
    ops.CAST: cast,
    ops.FULL_LIKE: full_like,
    ops.STOP_GRADIENT: jax.lax.stop_gradient,
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
    ops.SIGMOID: sigmoid,
    ops.RELU: jax.nn.relu,
    ops.RELU6: relu6,
    ops.SILU: jax.nn.silu,
    ops.SOFTPLUS: jax.nn.softplus,
    ops.HEAVISIDE: heaviside,
    ops.LEAKY_RELU: leaky_relu,
    ops.ELU: elu,
    ops.GELU: gelu,
    ops.FOLD_IN: fold_in,
    ops.UNIFORM_LIKE: random.uniform_like,
    ops.NORMAL_LIKE: random.normal_like,
}

UNSUPPORTED: dict[Op, str] = {}
