"""MLX's kernels of the array ops, each named after its op."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from multigrad.backend import (
    Op,
    along,
    as_index,
    as_matrix,
    as_numpy_dtype,
    as_pairs,
    dtype_name,
    from_front,
    lifted,
    namesakes,
    ops,
    orderings,
    over,
    rows_of,
)

from ..attach import from_numpy
from . import linalg, random
from .elementwise import accumulated, exp, is_floating, logaddexp

Tensor = Any
Axis = int | tuple[int, ...] | None


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


def einsum(*arrays: Tensor, subscripts: str) -> Tensor:
    return mx.einsum(subscripts, *map(accumulated, arrays)).astype(arrays[0].dtype)


def array(like: Tensor, *, dtype: Any, value: Any) -> Tensor:
    """Return a constant of the program."""
    return from_numpy(value.as_numpy(as_numpy_dtype(dtype_name(dtype))))


# --- shards: MLX's arrays are whole ------------------------------------------------------------
# One process has all of an array, so ops over shards return their input.
def all_dim(x: Tensor, *, axis: int, names: Any) -> int:
    return x.shape[axis]


def unchanged(x: Any, *rest: Any, **attrs: Any) -> Any:
    return x


def ppermute(x: Tensor, of: Tensor, *, names: Any, pairs: Any) -> Tensor:
    # Raises an error for pairs that name other processes.
    ops.PPERMUTE.numpy(np.zeros(()), None, names=names, pairs=pairs)
    return x if pairs else mx.zeros_like(x)


# --- shapes --------------------------------------------------------------------------------------
def axes_of(x: Tensor, axis: Axis) -> tuple[int, ...]:
    if axis is None or x.ndim == 0:
        return tuple(range(x.ndim))
    return tuple(range(x.ndim)[i] for i in (axis if isinstance(axis, tuple) else (axis,)))


def moveaxis(x: Tensor, *, source: Any, destination: Any) -> Tensor:
    if isinstance(source, int):
        return mx.moveaxis(x, source, destination)
    # MLX moves one axis at a time; several at once are a permutation.
    places = range(x.ndim)
    target = {places[to]: places[at] for at, to in zip(source, destination, strict=True)}
    rest = iter(i for i in places if i not in target.values())
    return mx.transpose(x, [target[i] if i in target else next(rest) for i in places])


def flip(x: Tensor, *, axis: Axis) -> Tensor:
    axes = axes_of(x, axis)
    return x[tuple(slice(None, None, -1 if i in axes else None) for i in range(x.ndim))]


def sum_to(x: Tensor, like: Tensor) -> Tensor:
    lead = x.ndim - like.ndim
    ones = [lead + i for i, n in enumerate(like.shape) if n == 1 != x.shape[lead + i]]
    axes = (*range(lead), *ones)
    if not axes:
        return x
    if not x.size:
        # MLX's sum of no elements was seen not to end.
        return mx.zeros(like.shape, x.dtype)
    return mx.sum(accumulated(x), axis=axes).reshape(like.shape).astype(x.dtype)


def getitem(x: Tensor, *, index: tuple[Any, ...]) -> Tensor:
    item = as_index(index)
    check(x.shape, item)
    return x[item]


def check(shape: tuple[int, ...], item: tuple[Any, ...]) -> None:
    """Raise an error for an integer beyond its axis, where MLX would read other memory."""
    axis, after = 0, len([i for i in item if i is not None and i is not ...])
    for each in item:
        if each is ...:
            axis += len(shape) - after
        elif each is not None:
            after -= 1
            if isinstance(each, int) and not -shape[axis] <= each < shape[axis]:
                raise IndexError(f"index {each} for axis {axis} of length {shape[axis]}")
            axis += 1


def setitem(x: Tensor, like: Tensor, *, index: tuple[Any, ...]) -> Tensor:
    full = mx.zeros(like.shape, x.dtype)
    full[as_index(index)] = x
    return full


def take(x: Tensor, *, indices: tuple[int, ...], axis: int) -> Tensor:
    return mx.take(x, positive(x, indices, axis), axis)


def positive(x: Tensor, indices: tuple[int, ...], axis: int) -> Tensor:
    return mx.array(from_front(indices, x.shape[axis]), mx.int32)


def untake(x: Tensor, like: Tensor, *, indices: tuple[int, ...], axis: int) -> Tensor:
    values = mx.moveaxis(accumulated(x), axis, 0)
    full = mx.zeros((like.shape[axis], *values.shape[1:]), values.dtype)
    full = full.at[positive(like, indices, axis)].add(values) if values.size else full
    return mx.moveaxis(full, 0, axis).astype(x.dtype)


def pad(x: Tensor, *, widths: tuple[Any, ...], fill: float) -> Tensor:
    return mx.pad(x, as_pairs(widths, x.ndim), constant_values=mx.array(fill, x.dtype))


def part(x: Tensor, like: Tensor, start: int, *, axis: int) -> Tensor:
    return x[along(x, start, like.shape[axis], axis)]


def unpart(x: Tensor, like: Tensor, start: int, *, axis: int) -> Tensor:
    full = mx.zeros(like.shape, x.dtype)
    full[along(x, start, x.shape[axis], axis)] = x
    return full


# --- scans -------------------------------------------------------------------------------------
@lifted
def cumsum(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    if not x.size:  # MLX before 0.32.4 ends the process
        return x
    return mx.cumsum(accumulated(x), axis=axis, reverse=reverse).astype(x.dtype)


@lifted
def cumprod(x: Tensor, *, axis: int) -> Tensor:
    return mx.cumprod(accumulated(x), axis=axis).astype(x.dtype) if x.size else x


@lifted
def logcumsumexp(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    return combine_along(logaddexp, (accumulated(x),), axis, reverse)[0].astype(x.dtype)


@lifted
def discounted_sum(values: Tensor, y: Tensor, *, axis: int, reverse: bool) -> Tensor:
    pair = (accumulated(values), accumulated(y))
    return combine_along(discount, pair, axis, reverse)[0].astype(values.dtype)


def discount(later: Any, earlier: Any) -> Any:
    (value, power), (total, y) = later, earlier
    share = mx.where(power == y, 1.0, exp(mx.minimum(power - y, 0.0)))
    return value + share * total, power


def combine_along(combine: Any, arrays: tuple[Tensor, ...], axis: int, reverse: bool) -> Any:
    """Combine each element with all before it along an axis, or with `reverse` all after it."""
    last = [mx.swapaxes(flip(x, axis=axis) if reverse else x, axis, -1) for x in arrays]
    length, shift = last[0].shape[-1], 1
    # Each step doubles the distance, so that there are log2(length) of them.
    while shift < length:
        later, earlier = [x[..., shift:] for x in last], [x[..., :-shift] for x in last]
        joined = combine(later, earlier) if len(last) > 1 else [combine(later[0], earlier[0])]
        last = [mx.concatenate([x[..., :shift], y], -1) for x, y in zip(last, joined, strict=True)]
        shift *= 2
    back = [mx.swapaxes(x, axis, -1) for x in last]
    return [flip(x, axis=axis) for x in back] if reverse else back


@lifted
def cummax(x: Tensor, *, axis: int) -> Tensor:
    return combine_along(mx.maximum, (x,), axis, False)[0]


@lifted
def cummin(x: Tensor, *, axis: int) -> Tensor:
    return combine_along(mx.minimum, (x,), axis, False)[0]


def positions(x: Tensor, axis: int) -> Tensor:
    """Return the index of each element along an axis, in a shape that broadcasts."""
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    return mx.arange(x.shape[axis], dtype=mx.int64).reshape(shape)


def put(shape: tuple[int, ...], index: Any, values: Tensor) -> Tensor:
    """Return sums of the values at positions; MLX refuses to add nothing, or to nothing."""
    sums = mx.zeros(shape, values.dtype)
    return sums.at[index].add(values) if values.size and sums.size else sums


def order(x: Tensor, axis: int, descending: bool) -> Tensor:
    if not x.size:
        return mx.zeros(x.shape, mx.uint32)
    # NaN comes last.
    if not descending:
        return mx.argsort(x, axis=axis)
    # mx.argsort is stable and ascending: sorting from the end keeps equal elements in order.
    last = x.shape[axis] - 1
    return last - flip(mx.argsort(flip(x, axis=axis), axis=axis).astype(mx.int32), axis=axis)


# --- positions -----------------------------------------------------------------------------------
# A position outside cannot raise an error, as nothing is computed yet: taking returns NaN there,
# and putting drops the value. MLX itself would read and write other memory.


@lifted
def argmax(x: Tensor, *, axis: int | None, keepdims: bool) -> Tensor:
    return first(x, axis, keepdims, True)


@lifted
def argmin(x: Tensor, *, axis: int | None, keepdims: bool) -> Tensor:
    return first(x, axis, keepdims, False)


def first(x: Tensor, axis: int | None, keepdims: bool, largest: bool) -> Tensor:
    """Return the position of the first NaN, or else of the first extreme."""
    find = mx.argmax if largest else mx.argmin
    if not x.size and axis is not None and x.shape[axis]:  # MLX refuses this
        return mx.zeros_like(mx.sum(x, axis=axis, keepdims=keepdims)).astype(mx.int64)
    if is_floating(x):
        nan = mx.isnan(x)
        some = mx.any(nan, axis=axis, keepdims=keepdims)
        # argmax returns the first of equal elements, here the first NaN.
        place = mx.argmax(nan.astype(mx.int32), axis=axis, keepdims=keepdims)
        return mx.where(some, place, find(x, axis=axis, keepdims=keepdims)).astype(mx.int64)
    return find(x, axis=axis, keepdims=keepdims).astype(mx.int64)


@lifted
def argsort(x: Tensor, *, axis: int, descending: bool) -> Tensor:
    return order(x, axis, descending).astype(mx.int64)


def fit(places: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return positions counted from the front, 0 for those outside, and which ones are outside."""
    places = mx.stop_gradient(places.astype(mx.int64))  # or mx.jvp (0.32) fails
    places = mx.where(places < 0, places + length, places)
    outside = (places < 0) | (places >= length)
    return mx.where(outside, 0, places), outside


def blank(x: Tensor) -> float | int:
    return math.nan if is_floating(x) else 0


@lifted
def take_along(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    places, outside = fit(indices, x.shape[axis])
    if not x.shape[axis]:
        return mx.full(indices.shape, blank(x), x.dtype)
    return mx.where(outside, blank(x), mx.take_along_axis(x, places, axis)).astype(x.dtype)


def rows(indices: Tensor, axis: int) -> tuple[Tensor, ...]:
    """Return the index of each element, replaced by `indices` along an axis."""
    axis = axis % indices.ndim
    return tuple(indices if i == axis else positions(indices, i) for i in range(indices.ndim))


@lifted
def untake_along(x: Tensor, indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    values = accumulated(x)
    places, outside = fit(indices, like.shape[axis])
    # Adding 0 at position 0 drops what lies outside.
    inside = mx.where(outside, 0, values)
    return put(like.shape, rows(places, axis), inside).astype(x.dtype)


def take_at(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    axis = axis % x.ndim
    places, outside = fit(indices, x.shape[axis])
    shape = (*indices.shape, *(1 for _ in range(x.ndim - axis - 1)))
    if not x.shape[axis]:
        return mx.full((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), blank(x), x.dtype)
    taken = mx.take(x, places, axis)
    return mx.where(outside.reshape(shape), blank(x), taken).astype(x.dtype)


def untake_at(x: Tensor, indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    axis = axis % like.ndim
    number = indices.ndim
    # The axes of the indices first, as `at[]` adds along the first axis.
    moved = [*range(axis, axis + number), *range(axis), *range(axis + number, x.ndim)]
    values = mx.transpose(accumulated(x), moved)
    places, outside = fit(indices, like.shape[axis])
    outside = outside.reshape((*indices.shape, *(1 for _ in range(values.ndim - number))))
    shape = (like.shape[axis], *like.shape[:axis], *like.shape[axis + 1 :])
    sums = put(shape, places, mx.where(outside, 0, values))
    return mx.moveaxis(sums, 0, axis).astype(x.dtype)


@lifted
def last_put(indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    places, outside = fit(indices, like.shape[axis])
    places_of_all = mx.broadcast_to(positions(indices, axis), indices.shape)
    last = mx.full(like.shape, -1, dtype=mx.int64)
    if not indices.size or not last.size:
        return last
    # The highest position wins wherever several indices agree.
    return last.at[rows(places, axis)].maximum(mx.where(outside, -1, places_of_all))


# Ops over shards that are the identity where there is one.
WHOLE = (
    *(ops.PLACE_KEY, ops.TO_SHARD, ops.FROM_SHARD, ops.ALL_SUM, ops.ALL_MAX),
    *(ops.ALL_GATHER, ops.REDUCE_SCATTER, ops.ALL_TO_ALL),
)
OPS: dict[Op, Callable[..., Any]] = {
    **orderings(order, mx.take_along_axis),
    **namesakes(mx),
    **rows_of(vars()),
    ops.RESHAPE: mx.reshape,
    ops.SQUEEZE: mx.squeeze,
    ops.EXPAND_DIMS: mx.expand_dims,
    ops.PERMUTE_DIMS: mx.transpose,
    ops.SWAPAXES: mx.swapaxes,
    ops.BROADCAST_TO_SHAPE: mx.broadcast_to,
    ops.REPEAT: mx.repeat,
    **dict.fromkeys(WHOLE, unchanged),
    ops.FOLD_IN: random.fold_in,
    ops.UNIFORM_LIKE: random.uniform_like,
    ops.NORMAL_LIKE: random.normal_like,
    **linalg.OPS,
}
