"""MLX's kernels of the array ops, op to callable."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from multigrad.backend import Op, as_numpy_dtype, dtype_name, ops, rows_of

from ..attach import bridge
from . import convolutions, indices, linalg, ordering, random, shapes
from .elementwise import accumulated, exp
from .shapes import axes_of, sum_to

Tensor = Any
Axis = int | tuple[int, ...] | None


def over(x: Tensor, axis: Axis) -> Axis:
    # MLX refuses any axis of a 0-d array.
    return () if x.ndim == 0 else axis


def reduced(reduce: Any, x: Tensor, axis: Axis, keepdims: bool, empty: float) -> Tensor:
    """Return a reduction, or its value for no elements: MLX's kernel was seen not to end there."""
    wide, axis = accumulated(x), over(x, axis)
    if x.size:
        return reduce(wide, axis=axis, keepdims=keepdims)
    return of_nothing(x, axis, keepdims, mx.array(empty, wide.dtype))


def of_nothing(x: Tensor, axis: Axis, keepdims: bool, value: Tensor) -> Tensor:
    axes = axes_of(x, axis)
    lengths = [(1 if i in axes else n) for i, n in enumerate(x.shape) if keepdims or i not in axes]
    return mx.full(lengths, value)


def sum_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return reduced(mx.sum, x, axis, keepdims, 0.0).astype(x.dtype)


def mean(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return reduced(mx.mean, x, axis, keepdims, math.nan).astype(x.dtype)


def max_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return mx.max(x, axis=over(x, axis), keepdims=keepdims)


def min_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return mx.min(x, axis=over(x, axis), keepdims=keepdims)


def any_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    if not x.size:
        return of_nothing(x, axis, keepdims, mx.array(False))
    return mx.any(x, axis=over(x, axis), keepdims=keepdims)


def all_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    if not x.size:
        return of_nothing(x, axis, keepdims, mx.array(True))
    return mx.all(x, axis=over(x, axis), keepdims=keepdims)


def prod(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return reduced(mx.prod, x, axis, keepdims, 1.0).astype(x.dtype)


def count_nonzero(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    if not x.size:
        return of_nothing(x, axis, keepdims, mx.array(0, x.dtype))
    return mx.sum(x != 0, axis=over(x, axis), keepdims=keepdims).astype(x.dtype)


def largest(x: Tensor, axis: Axis, keepdims: bool, least: float) -> Tensor:
    """Return the largest along axes, `least` if these have no elements."""
    if all(x.shape[i] for i in axes_of(x, axis)):
        return mx.max(x, axis=axis, keepdims=keepdims)
    # The sum only gives the shape: there is an axis without elements.
    return reduced(mx.sum, x, axis, keepdims, 0.0) + least


def logsumexp(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    wide, axis = accumulated(x), over(x, axis)
    top = largest(wide, axis, True, -math.inf)
    # An infinite or NaN maximum would make NaN of `wide - shift`.
    shift = mx.where(mx.isinf(top) | mx.isnan(top), 0.0, top)
    total = mx.log(reduced(mx.sum, exp(wide - shift), axis, True, 0.0)) + shift
    return (total if keepdims else mx.squeeze(total, axes_of(x, axis))).astype(x.dtype)


def softmax(x: Tensor, *, axis: Axis) -> Tensor:
    wide, axis = accumulated(x), over(x, axis)
    raised = exp(wide - largest(wide, axis, True, -math.inf))
    return (raised / reduced(mx.sum, raised, axis, True, 0.0)).astype(x.dtype)


def log_softmax(x: Tensor, *, axis: Axis) -> Tensor:
    wide, axis = accumulated(x), over(x, axis)
    shifted = wide - largest(wide, axis, True, -math.inf)
    total = mx.log(reduced(mx.sum, exp(shifted), axis, True, 0.0))
    return (shifted - total).astype(x.dtype)


# --- products ----------------------------------------------------------------------------------
def matmul(a: Tensor, b: Tensor) -> Tensor:
    return mx.matmul(accumulated(a), accumulated(b)).astype(a.dtype)


def matmul_left(cotangent: Tensor, b: Tensor, like: Tensor) -> Tensor:
    product = as_matrix(accumulated(cotangent), like, b)
    columns = mx.swapaxes(accumulated(b if b.ndim > 1 else b[:, None]), -1, -2)
    result = mx.matmul(product, columns)
    result = result if like.ndim > 1 else result[..., 0, :]
    return sum_to(result, like).astype(cotangent.dtype)


def matmul_right(a: Tensor, cotangent: Tensor, like: Tensor) -> Tensor:
    product = as_matrix(accumulated(cotangent), a, like)
    rows = mx.swapaxes(accumulated(a if a.ndim > 1 else a[None]), -1, -2)
    result = mx.matmul(rows, product)
    result = result if like.ndim > 1 else result[..., 0]
    return sum_to(result, like).astype(cotangent.dtype)


def as_matrix(product: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return a product of a and b with the axes that a vector among them has removed."""
    product = product[..., None] if b.ndim == 1 else product
    return product[..., None, :] if a.ndim == 1 else product


def einsum(*arrays: Tensor, subscripts: str) -> Tensor:
    return mx.einsum(subscripts, *map(accumulated, arrays)).astype(arrays[0].dtype)


def array(like: Tensor, *, dtype: Any, value: Any) -> Tensor:
    """Return a constant of the program."""
    return bridge.from_numpy(value.as_numpy(as_numpy_dtype(dtype_name(dtype))))


# --- shards: MLX's arrays are whole ------------------------------------------------------------
# One process has all of an array, so ops over shards return their input.
def all_dim(x: Tensor, *, axis: int, names: Any) -> int:
    return x.shape[axis]


def place_key(key: Any, like: Tensor, *, split: Any) -> Any:
    return key


def to_shard(x: Tensor) -> Tensor:
    return x


def from_shard(x: Tensor, like: Tensor) -> Tensor:
    return x


def all_sum(x: Tensor, of: Tensor, *, names: Any) -> Tensor:
    return x


def all_max(x: Tensor, of: Tensor, *, names: Any) -> Tensor:
    return x


def all_gather(x: Tensor, of: Tensor, *, names: Any, axis: int) -> Tensor:
    return x


def reduce_scatter(x: Tensor, of: Tensor, *, names: Any, axis: int) -> Tensor:
    return x


def all_to_all(x: Tensor, of: Tensor, *, names: Any, axis: int, concat: int) -> Tensor:
    return x


def ppermute(x: Tensor, of: Tensor, *, names: Any, pairs: Any) -> Tensor:
    # Raises an error for pairs that name other processes.
    ops.PPERMUTE.numpy(np.zeros(()), None, names=names, pairs=pairs)
    return x if pairs else mx.zeros_like(x)


OPS: dict[Op, Callable[..., Any]] = {
    **rows_of(vars()),
    ops.FOLD_IN: random.fold_in,
    ops.UNIFORM_LIKE: random.uniform_like,
    ops.NORMAL_LIKE: random.normal_like,
    **ordering.OPS,
    **convolutions.OPS,
    **indices.OPS,
    **linalg.OPS,
    **shapes.OPS,
}
