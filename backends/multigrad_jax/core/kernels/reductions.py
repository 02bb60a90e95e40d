"""JAX's kernels of reductions, and of the shapes that rules need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from multigrad.core import ops
from multigrad.core.backend.rows import rows_of
from multigrad.core.ir.op import Op
from multigrad.core.ops.reductions import over, over_axes

Tensor: TypeAlias = jax.Array
Axis = int | tuple[int, ...] | None


def count_nonzero(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return jnp.sum(x != 0, axis=over(x, axis), keepdims=keepdims).astype(x.dtype)


def logsumexp(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    axis = over(x, axis)
    largest = jnp.max(x, axis=axis, keepdims=True, initial=-jnp.inf)
    # without this, -inf - -inf gives NaN for a row of infinities
    shift = jnp.where(jnp.isfinite(largest), largest, 0)
    total = jnp.log(jnp.sum(jnp.exp(x - shift), axis=axis, keepdims=True)) + shift
    return total if keepdims else jnp.squeeze(total, axis)


def sum_to(x: Tensor, like: Tensor) -> Tensor:
    lengths, shape = x.shape, like.shape
    if lengths == shape:
        return x
    lead = len(lengths) - len(shape)
    ones = [lead + i for i, n in enumerate(shape) if n == 1 != lengths[lead + i]]
    axes = (*range(lead), *ones)
    return jnp.sum(x, axis=axes, keepdims=True).reshape(shape) if axes else x


def reshape_like(x: Tensor, like: Tensor) -> Tensor:
    return jnp.reshape(x, like.shape)


def broadcast_to(x: Tensor, like: Tensor) -> Tensor:
    return jnp.broadcast_to(x, like.shape)


def dim(x: Tensor, *, axis: int) -> int:
    return x.shape[axis]


def size(x: Tensor) -> int:
    return x.size


def array(like: Tensor, *, dtype: Any, value: Any) -> Tensor:
    # without a device: a constant goes where the other operands are
    return jnp.asarray(value.as_numpy(jnp.dtype(dtype)))


# --- linear algebra: a matrix without a factor or inverse gives NaN or an infinity ----------------
# The functions of `jax.numpy` that have the names of their ops; `sum` adds up 16 bits in float32.
REDUCTIONS = "sum mean max min any all prod var std"
OPS: dict[Op, Callable[..., Any]] = {
    **rows_of(vars(), ops.CORE_OPS),
    **rows_of({name: over_axes(getattr(jnp, name)) for name in REDUCTIONS.split()}, ops.CORE_OPS),
    ops.SOFTMAX: over_axes(jax.nn.softmax),
    ops.LOG_SOFTMAX: over_axes(jax.nn.log_softmax),
    ops.EXPAND_DIMS: jnp.expand_dims,
    ops.RESHAPE: jnp.reshape,
    ops.SQUEEZE: jnp.squeeze,
    ops.BROADCAST_TO_SHAPE: jnp.broadcast_to,
}
