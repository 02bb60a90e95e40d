"""MLX's kernels that take from and put to positions, each named after its op.

A position outside cannot raise an error, as nothing is computed yet: taking returns NaN there, and
putting drops the value. MLX itself would read and write other memory.
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx

from multigrad.backend import lifted, rows_of

from .elementwise import accumulated, is_floating
from .ordering import order, positions, put

Tensor = Any


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
    kept = mx.where(outside, 0, values)
    return put(like.shape, rows(places, axis), kept).astype(x.dtype)


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
    own = mx.broadcast_to(positions(indices, axis), indices.shape)
    last = mx.full(like.shape, -1, dtype=mx.int64)
    if not indices.size or not last.size:
        return last
    # The highest position wins wherever several indices agree.
    return last.at[rows(places, axis)].maximum(mx.where(outside, -1, own))


OPS = rows_of(vars())
