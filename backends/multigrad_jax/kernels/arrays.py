"""JAX's kernels of the ops on arrays, and of convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from multigrad.backend import rows_of
from multigrad.graph import ops
from multigrad.graph.ir.op import Op
from multigrad.graph.ops.arrays.products import as_matrix

from . import linalg, ordering, random, shapes
from .elementwise import accumulated, is_staged_out

Tensor = Any
Ints = tuple[int, ...]
Axis = int | tuple[int, ...] | None


def windows(x: Tensor, *, sizes: Ints, strides: Ints, dilations: Ints) -> Tensor:
    first = x.ndim - len(sizes)
    for i, (size, stride, dilation) in enumerate(zip(sizes, strides, dilations, strict=True)):
        count = (x.shape[first + i] - dilation * (size - 1) - 1) // stride + 1
        # windows overlap, so that each element is gathered as often as it is seen
        places = stride * jnp.arange(count)[:, None] + dilation * jnp.arange(size)
        x = jnp.moveaxis(jnp.take(x, places, first + i), first + i + 1, -1)
    return x


def unwindows(x: Tensor, like: Tensor, **attrs: Any) -> Tensor:
    values = accumulated(x)
    shape = jax.ShapeDtypeStruct(like.shape, values.dtype)
    # sums in float32 for 16 bits: an element may be in many windows
    (sums,) = jax.linear_transpose(lambda given: windows(given, **attrs), shape)(values)
    return sums.astype(x.dtype)


def conv(x: Tensor, w: Tensor, *, strides: Ints, dilations: Ints, groups: int) -> Tensor:
    return lax.conv_general_dilated(
        x, w, strides, "VALID", rhs_dilation=dilations, feature_group_count=groups
    )


def conv_left(cotangent: Tensor, w: Tensor, like: Tensor, **attrs: Any) -> Tensor:
    given, kernels = accumulated(cotangent), accumulated(w)
    shape = jax.ShapeDtypeStruct(like.shape, given.dtype)
    (result,) = jax.linear_transpose(lambda x: conv(x, kernels, **attrs), shape)(given)
    return result.astype(cotangent.dtype)


def conv_right(x: Tensor, cotangent: Tensor, like: Tensor, **attrs: Any) -> Tensor:
    seen, given = accumulated(x), accumulated(cotangent)
    shape = jax.ShapeDtypeStruct(like.shape, given.dtype)
    (result,) = jax.linear_transpose(lambda w: conv(seen, w, **attrs), shape)(given)
    return result.astype(cotangent.dtype)


def over(x: Tensor, axis: Axis) -> Axis:
    # a scalar has no axes, whichever are named
    return () if x.ndim == 0 else axis


def over_axes(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(x: Tensor, *, axis: Axis, **attrs: Any) -> Tensor:
        return function(x, axis=over(x, axis), **attrs)

    return call


def count_nonzero(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return jnp.sum(x != 0, axis=over(x, axis), keepdims=keepdims).astype(x.dtype)


def logsumexp(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    axis = over(x, axis)
    largest = jnp.max(x, axis=axis, keepdims=True, initial=-jnp.inf)
    # without this, -inf - -inf gives NaN for a row of infinities
    shift = jnp.where(jnp.isfinite(largest), largest, 0)
    total = jnp.log(jnp.sum(jnp.exp(x - shift), axis=axis, keepdims=True)) + shift
    return total if keepdims else jnp.squeeze(total, axis)


def var(x: Tensor, *, axis: Axis, keepdims: bool, correction: float) -> Tensor:
    return jnp.var(x, axis=over(x, axis), ddof=correction, keepdims=keepdims)


def std(x: Tensor, *, axis: Axis, keepdims: bool, correction: float) -> Tensor:
    return jnp.std(x, axis=over(x, axis), ddof=correction, keepdims=keepdims)


def sum_to(x: Tensor, like: Tensor) -> Tensor:
    given, shape = x.shape, like.shape
    if given == shape:
        return x
    lead = len(given) - len(shape)
    ones = [lead + i for i, n in enumerate(shape) if n == 1 != given[lead + i]]
    axes = (*range(lead), *ones)
    return jnp.sum(x, axis=axes, keepdims=True).reshape(shape) if axes else x


def broadcast_to(x: Tensor, like: Tensor) -> Tensor:
    return jnp.broadcast_to(x, like.shape)


def dim(x: Tensor, *, axis: int) -> int:
    return x.shape[axis]


def size(x: Tensor) -> int:
    return x.size


def wide_dtype(x: Tensor) -> Any:
    return jnp.float32 if x.dtype.itemsize == 2 else x.dtype


def matmul(a: Tensor, b: Tensor) -> Tensor:
    if are_staged_matrices(a, b):
        return contracted(a, 1, b, 0)
    return narrowed(jnp.matmul(a, b, preferred_element_type=wide_dtype(a)), a.dtype)


def are_staged_matrices(a: Tensor, b: Tensor) -> bool:
    # one equation is enough for two strong matrices, and jnp.matmul takes many steps of Python to
    # find that out
    if not (is_staged_out(a) and is_staged_out(b)):
        return False
    left, right = a.aval, b.aval
    is_plain = left.dtype == right.dtype and left.dtype.itemsize > 2
    return (
        is_plain
        and len(left.shape) == len(right.shape) == 2
        and not (left.weak_type or right.weak_type)
    )


def contracted(a: Tensor, i: int, b: Tensor, j: int) -> Tensor:
    return jax.lax.dot_general(a, b, (((i,), (j,)), ((), ())), preferred_element_type=a.dtype)


def narrowed(x: Tensor, dtype: Any) -> Tensor:
    # a look costs less than jax's cast to the same dtype
    return x if x.dtype == dtype else x.astype(dtype)


def matmul_left(cotangent: Tensor, b: Tensor, like: Tensor) -> Tensor:
    if like.ndim == 2 and are_staged_matrices(cotangent, b):
        return contracted(cotangent, 1, b, 1)
    product = as_matrix(cotangent, like, b)
    columns = jnp.swapaxes(b if b.ndim > 1 else b[:, None], -1, -2)
    result = jnp.matmul(product, columns, preferred_element_type=wide_dtype(b))
    result = result if like.ndim > 1 else result[..., 0, :]
    return narrowed(sum_to(result, like), cotangent.dtype)


def matmul_right(a: Tensor, cotangent: Tensor, like: Tensor) -> Tensor:
    if like.ndim == 2 and are_staged_matrices(a, cotangent):
        return contracted(a, 0, cotangent, 0)
    product = as_matrix(cotangent, a, like)
    rows = jnp.swapaxes(a if a.ndim > 1 else a[None], -1, -2)
    result = jnp.matmul(rows, product, preferred_element_type=wide_dtype(a))
    result = result if like.ndim > 1 else result[..., 0]
    return narrowed(sum_to(result, like), cotangent.dtype)


def einsum(*arrays: Tensor, subscripts: str) -> Tensor:
    return jnp.einsum(subscripts, *arrays)


def array(like: Tensor, *, dtype: Any, value: Any) -> Tensor:
    # without a device: a constant goes where the other operands are
    return jnp.asarray(value.as_numpy(jnp.dtype(dtype)))


OPS: dict[Op, Callable[..., Any]] = {
    **rows_of(vars()),
    ops.SUM: over_axes(jnp.sum),  # accumulates 16-bit floats in float32
    ops.MEAN: over_axes(jnp.mean),
    ops.MAX: over_axes(jnp.max),
    ops.MIN: over_axes(jnp.min),
    ops.ANY: over_axes(jnp.any),
    ops.ALL: over_axes(jnp.all),
    ops.PROD: over_axes(jnp.prod),
    ops.SOFTMAX: over_axes(jax.nn.softmax),
    ops.LOG_SOFTMAX: over_axes(jax.nn.log_softmax),
    ops.EXPAND_DIMS: jnp.expand_dims,
    ops.FOLD_IN: random.fold_in,
    ops.UNIFORM_LIKE: random.uniform_like,
    ops.NORMAL_LIKE: random.normal_like,
    **ordering.OPS,
    **linalg.OPS,
    **shapes.OPS,
}
