"""Paddle's rows of the family of places, each function named as its op."""

from __future__ import annotations

import paddle

from multigrad.backend import rows_of

from .ordering import find, gather, order, positions, scatter_add
from .shapes import add_at, axes_of, reshape, take_places
from .widening import INT64, Tensor, rounded, wide


def argmax(x: Tensor, *, axis: int | None, keepdims: bool) -> Tensor:
    return place_of(x, axis, keepdims, True)


def argmin(x: Tensor, *, axis: int | None, keepdims: bool) -> Tensor:
    return place_of(x, axis, keepdims, False)


def place_of(x: Tensor, axis: int | None, keepdims: bool, largest: bool) -> Tensor:
    if axis is None or len(x.shape) == 0:
        place = find(paddle.reshape(x, [-1]), 0, largest)
        return paddle.reshape(place, [1] * len(x.shape) if keepdims else [])
    place = find(x, axis, largest)
    return place if keepdims else paddle.squeeze(place, axis)


def argsort(x: Tensor, *, axis: int, descending: bool) -> Tensor:
    if len(x.shape) == 0 or 0 in x.shape:
        return paddle.zeros(x.shape, INT64)
    return order(x, axis, descending)


def take_along(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    if 0 in indices.shape:
        return paddle.zeros(indices.shape, x.dtype)
    if len(x.shape) == 0:
        return gather(paddle.reshape(x, [1]), paddle.reshape(indices, [1]), 0).reshape([])
    return gather(x, checked(indices, x.shape[axis]), axis)


def checked(indices: Tensor, length: int) -> Tensor:
    """Places that lie within; Paddle reads memory beyond, or leaves the process."""
    if isinstance(indices, paddle.Tensor) and bool(((indices < 0) | (indices >= length)).any()):
        raise IndexError(f"indices outside of an axis of length {length}")
    return indices


def untake_along(x: Tensor, indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    if len(like.shape) == 0:
        return x
    return rounded(scatter_add(wide(x), checked(indices, like.shape[axis]), like, axis), x.dtype)


def take_at(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    axis = axes_of(x, axis)[0]
    at = checked(reshape(indices, shape=(-1,)), x.shape[axis])
    taken = take_places(x, at, axis)
    return reshape(taken, shape=(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def untake_at(x: Tensor, indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    axis, flat = axes_of(like, axis)[0], reshape(indices, shape=(-1,))
    shape = (*like.shape[:axis], flat.shape[0], *like.shape[axis + 1 :])
    at = checked(flat, like.shape[axis])
    return add_at(reshape(x, shape=shape), at, like.shape[axis], axis)


def last_put(indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    if len(like.shape) == 0:
        return paddle.zeros([], INT64)
    last = paddle.full(like.shape, -1, INT64)
    if 0 in indices.shape:
        return last
    places = paddle.expand(positions(indices, axis), indices.shape)
    at = checked(indices, like.shape[axis])
    return paddle.put_along_axis(last, at, places, axis, reduce="amax", broadcast=False)


OPS = rows_of(vars())
