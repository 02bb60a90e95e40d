"""JAX's rows of the elementwise family: op to callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from multigrad.ir import ops
from multigrad.ir.ops import Op

Tensor = Any


def accumulated(x: Tensor) -> Tensor:
    """16-bit floats in float32, so that a reduction rounds once."""
    return x.astype(jnp.float32) if x.dtype.itemsize == 2 else x


def clip(x: Tensor, min: Any, max: Any) -> Tensor:
    return jnp.minimum(jnp.maximum(x, min), max)


def cast(x: Tensor, *, dtype: Any) -> Tensor:
    return x.astype(dtype)


def full_like(x: Tensor, value: Any, *, dtype: Any = None) -> Tensor:
    return jnp.full_like(x, value, dtype=dtype)


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
    ops.SIGMOID: sigmoid,
    ops.RELU: jax.nn.relu,
    ops.RELU6: relu6,
    ops.SILU: jax.nn.silu,
    ops.SOFTPLUS: jax.nn.softplus,
    ops.HEAVISIDE: heaviside,
    ops.LEAKY_RELU: leaky_relu,
    ops.ELU: elu,
    ops.GELU: gelu,
}
