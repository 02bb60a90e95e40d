"""JAX's kernels of the ops on shapes and indices, and of sorts and cumulations.

Its integers are int32 unless int64 is switched on. An index outside cannot raise: reads give NaN,
as `jnp.take` does, and writes are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from multigrad.core import ops
from multigrad.core.backend.rows import rows_of
from multigrad.engine.backend.array_rows import lifted, namesakes, orderings
from multigrad.engine.ops.indexing import along, as_index, as_pairs, from_front

from ..core.kernels.elementwise import accumulated

Tensor: TypeAlias = jax.Array
Axis = int | tuple[int, ...] | None


def cumulated(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a cumulation of `jax.lax` as a kernel: that takes no negative axis, and no scalar."""

    @lifted
    def call(x: Tensor, *, axis: int, **attrs: bool) -> Tensor:
        return function(x, range(x.ndim)[axis], **attrs)

    return call


@lifted
def discounted_sum(values: Tensor, y: Tensor, *, axis: int, reverse: bool) -> Tensor:
    def combine(earlier: Any, later: Any) -> Any:
        (total, base), (value, exponent) = earlier, later
        # equal infinities would give NaN as a difference
        share = jnp.where(exponent == base, 1.0, jnp.exp(jnp.minimum(exponent - base, 0.0)))
        return value + share * total, exponent

    pair, axis = (values, y), range(values.ndim)[axis]
    return jax.lax.associative_scan(combine, pair, reverse=reverse, axis=axis)[0]


def positions(x: Tensor, axis: int) -> Tensor:
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    return jnp.arange(x.shape[axis]).reshape(shape)


def order(x: Tensor, axis: int, descending: bool) -> Tensor:
    return jnp.argsort(x, axis=axis, stable=True, descending=descending)


@lifted
def take_along(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    return jnp.take_along_axis(x, none_from_end(indices, x.shape[axis]), axis)


def none_from_end(indices: Tensor, length: int) -> Tensor:
    # jax counts negative indices from the end, and XLA in 32 bits: here both are outside
    return jnp.where((indices < 0) | (indices >= length), length, indices)


def rows(indices: Tensor, axis: int) -> Any:
    places = list(jnp.indices(indices.shape, sparse=True))
    places[axis] = indices
    return tuple(places)


@lifted
def untake_along(x: Tensor, indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    values = accumulated(x)
    sums = jnp.zeros(like.shape, values.dtype)
    return sums.at[rows(none_from_end(indices, like.shape[axis]), axis)].add(values).astype(x.dtype)


def take_at(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    return jnp.take(x, none_from_end(indices, x.shape[axis]), axis)


def take_nearest(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    axis, length = axis % x.ndim, x.shape[axis]
    if not length:
        return jnp.zeros((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
    # So read, an element outside gets no gradient: JAX transposes this read where it takes the
    # derivative of a map of tangents. It counts negative indices from the end.
    places = jnp.where(indices < 0, -1 - length, indices)
    index = (*(slice(None),) * axis, places)
    return x.at[index].get(mode="promise_in_bounds")


def untake_at(x: Tensor, indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    axis = axis % like.ndim
    front = tuple(range(indices.ndim))
    values = jnp.moveaxis(accumulated(x), tuple(axis + i for i in front), front)
    shape = (like.shape[axis], *like.shape[:axis], *like.shape[axis + 1 :])
    sums = jnp.zeros(shape, values.dtype).at[none_from_end(indices, shape[0])].add(values)
    return jnp.moveaxis(sums, 0, axis).astype(x.dtype)


@lifted
def last_put(indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    last_positions = jnp.full(like.shape, -1, indices.dtype)
    # of several updates of one place the last wins: jax's own order is undefined
    return last_positions.at[rows(indices, axis)].max(positions(indices, axis))


def flip(x: Tensor, *, axis: Axis) -> Tensor:
    return jnp.flip(x, None if x.ndim == 0 else axis)


def getitem(x: Tensor, *, index: tuple[Any, ...]) -> Tensor:
    item, shape = as_index(index), x.shape
    # NumPy's error for an index out of range, where jax clamps it. A length that is open may be 1.
    blank(tuple([n if type(n) is int else 1 for n in shape]))[item]
    if None in item or not are_known(shape):
        return x[item]
    ranges = places(item, shape)
    # The slice that jax.numpy makes too, after many steps of Python.
    starts, ends, steps = [], [], []
    for each in ranges:
        if not each or each.step < 0:
            return x[item]
        starts.append(each.start)
        ends.append(each[-1] + 1)
        steps.append(each.step)
    block = x
    if shape != tuple(map(len, ranges)):
        block = jax.lax.slice(x, starts, ends, steps if max(steps) > 1 else None)
    axes = [i for i, each in enumerate(by_axis(item, len(shape))) if not isinstance(each, slice)]
    return jax.lax.squeeze(block, axes) if axes else block


def are_known(shape: tuple[Any, ...]) -> bool:
    return {*map(type, shape)} <= {int}


def blank(shape: tuple[int, ...]) -> Any:
    # one byte of memory serves any shape: NumPy only tells what an index takes
    return np.ndarray(shape, bool, b"\0", strides=(0,) * len(shape))


def setitem(x: Tensor, like: Tensor, *, index: tuple[Any, ...]) -> Tensor:
    return placed(x, as_index(index), like.shape)


def put(x: Tensor, value: Any, *, index: tuple[Any, ...]) -> Tensor:
    item = as_index(index)
    if not are_known(x.shape):
        return x.at[item].set(value)
    ranges, item_shape = places(item, x.shape), blank(x.shape)[item].shape
    if any(each.step != 1 for each in ranges):
        return x.at[item].set(value)
    # One block, which XLA writes over x where it can; a scatter it does element by element.
    block = jnp.broadcast_to(jnp.asarray(value, x.dtype), item_shape)
    lengths, starts = zip(*[(len(each), each.start) for each in ranges], strict=True)
    return jax.lax.dynamic_update_slice(x, block.reshape(lengths), starts)


def placed(x: Tensor, item: tuple[Any, ...], shape: tuple[Any, ...]) -> Tensor:
    """Return zeros of a shape with x at an index without arrays."""
    if not are_known(shape):
        return jnp.zeros(shape, x.dtype).at[item].set(x)
    # Zeros around it cost XLA less than a scatter, and less to trace.
    ranges = places(item, shape)
    item_shape, lengths = blank(shape)[item].shape, tuple(map(len, ranges))
    x = x if x.shape == item_shape else jnp.broadcast_to(x, item_shape)
    x = x if item_shape == lengths else x.reshape(lengths)
    backward_axes = [i for i, each in enumerate(ranges) if each.step < 0]
    x = jnp.flip(x, backward_axes) if backward_axes else x
    return jax.lax.pad(x, x.dtype.type(0), [*map(margins, ranges, shape)])


def places(item: tuple[Any, ...], shape: tuple[int, ...]) -> list[range]:
    pairs = zip(by_axis(item, len(shape)), shape, strict=True)
    return [range(n)[i] if isinstance(i, slice) else range(n)[i : i + 1 or None] for i, n in pairs]


def by_axis(item: tuple[Any, ...], rank: int) -> list[Any]:
    """Return the index of each axis, with the ellipsis expanded and new axes dropped."""
    indices = [each for each in item if each is not None]
    if Ellipsis not in indices:
        indices.append(Ellipsis)
    dots = indices.index(Ellipsis)
    indices[dots : dots + 1] = [slice(None)] * (rank - len(indices) + 1)
    return indices


def margins(indices: range, length: int) -> tuple[int, int, int]:
    """Return the numbers of zeros before, after and between places along an axis."""
    if not indices:
        return 0, length, 0
    return min(indices), length - 1 - max(indices), abs(indices.step) - 1


def take(x: Tensor, *, indices: tuple[int, ...], axis: int) -> Tensor:
    return jnp.take(x, positive(x, indices, axis), axis)


def positive(x: Tensor, indices: tuple[int, ...], axis: int) -> Any:
    return np.array(from_front(indices, x.shape[axis]), np.int32)


def untake(x: Tensor, like: Tensor, *, indices: tuple[int, ...], axis: int) -> Tensor:
    values = jnp.moveaxis(accumulated(x), axis, 0)
    shape = (like.shape[axis], *values.shape[1:])
    sums = jnp.zeros(shape, values.dtype).at[positive(like, indices, axis)].add(values)
    return jnp.moveaxis(sums, 0, axis).astype(x.dtype)


def pad(x: Tensor, *, widths: tuple[Any, ...], fill: float) -> Tensor:
    return jnp.pad(x, as_pairs(widths, x.ndim), constant_values=fill)


def part(x: Tensor, like: Tensor, start: int, *, axis: int) -> Tensor:
    return jax.lax.slice_in_dim(x, start, start + like.shape[axis], axis=axis)


def unpart(x: Tensor, like: Tensor, start: int, *, axis: int) -> Tensor:
    return placed(x, along(x, start, x.shape[axis], axis), like.shape)


# --- masks as bits, eight to a byte, the first in the highest bit ---------------------------------
def pack(mask: Tensor) -> Tensor:
    return jnp.packbits(mask)


def unpack(bits: Tensor, like: Tensor) -> Tensor:
    flat = jnp.unpackbits(bits, count=math.prod(like.shape))
    return flat.reshape(like.shape).astype(bool)


OPS = {
    **orderings(order, jnp.take_along_axis),
    **namesakes(jnp),
    **rows_of(vars()),
    ops.PERMUTE_DIMS: jnp.transpose,
    ops.SWAPAXES: jnp.swapaxes,
    ops.MOVEAXIS: jnp.moveaxis,
    ops.REPEAT: jnp.repeat,
    ops.CUMSUM: cumulated(jax.lax.cumsum),
    ops.CUMPROD: lifted(jnp.cumprod),
    ops.CUMMAX: cumulated(jax.lax.cummax),
    ops.CUMMIN: cumulated(jax.lax.cummin),
    ops.LOGCUMSUMEXP: cumulated(jax.lax.cumlogsumexp),
    ops.SORT: lifted(jnp.sort),
    ops.ARGMAX: lifted(jnp.argmax),
    ops.ARGMIN: lifted(jnp.argmin),
    ops.ARGSORT: lifted(order),
}
