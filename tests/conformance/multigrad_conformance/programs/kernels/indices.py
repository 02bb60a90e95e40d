"""What integers mean, and what stands at places."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..bounded import INT32, INT64, Bounded, Function, monotone, unknown_where
from .arrays import axes_of

Array = Any
Axis = Any
LARGEST = 2**31 - 1  # where JAX has no int64, what is larger is another number there


def whole_rows(function: Function) -> Function:
    """A scalar counts as one element along any axis."""

    def call(*operands: Bounded, axis: Axis, **attrs: Any) -> Bounded:
        if operands[0].shape:
            return function(*operands, axis=axis, **attrs)
        rows = tuple(x.map(lambda a, fill: np.reshape(a, 1)) for x in operands)
        return function(*rows, axis=0, **attrs).map(lambda a, fill: np.reshape(a, ()))

    return call


def wrap(value: Array) -> Array:
    return (np.asarray(value).astype(np.int64) + 2**31) % 2**32 - 2**31


def shift_left(a: Array, b: Array) -> Array:
    inside = (b >= 0) & (b < 32)
    return np.where(inside, a << np.where(inside, b, 0), 0)


def shift_right(a: Array, b: Array) -> Array:
    return a >> np.where((b >= 0) & (b < 32), b, 31)


def floor_divide(a: Array, b: Array) -> Array:
    return np.where(b == 0, 0, a // np.where(b == 0, 1, b))


def remainder(a: Array, b: Array) -> Array:
    return np.where(b == 0, 0, a % np.where(b == 0, 1, b))


def clip(x: Array, low: Array, high: Array) -> Array:
    return np.minimum(np.maximum(x, low), high)


ELEMENTWISE: dict[str, Function] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "abs": np.abs,
    "maximum": np.maximum, "minimum": np.minimum, "floor_divide": floor_divide,
    "remainder": remainder, "clip": clip, "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor, "bitwise_invert": np.bitwise_not,
    "bitwise_left_shift": shift_left, "bitwise_right_shift": shift_right,
}  # fmt: skip


def evaluate(name: str, operands: tuple[Bounded, ...], dtype: Any) -> Bounded:
    """Integers wrap around; what roundings decide is not known at all."""
    value = ELEMENTWISE[name](*(np.asarray(x.value).astype(np.int64) for x in operands))
    lost = np.zeros(np.shape(value), bool)
    for x in operands:
        lost = lost | (x.error > 0)
    return whole(value, lost, dtype)


def whole(value: Array, lost: Array, dtype: Any) -> Bounded:
    """Integers of a dtype, with an infinite bound where they are not known."""
    if dtype == INT32:
        value = wrap(value)
    else:
        lost = lost | (np.abs(value) > LARGEST)
    return Bounded(value, np.where(lost, np.inf, 0.0), dtype)


def over_axes(function: Function, reach: Function) -> Function:
    def reduce(x: Bounded, axis: Any, keepdims: bool) -> Bounded:
        axes = axes_of(x, axis)
        lost = np.broadcast_to(x.error > 0, x.shape)
        value = function(np.asarray(x.value, np.int64), axis=axes, keepdims=keepdims)
        return whole(value, reach(lost, axis=axes, keepdims=keepdims), x.dtype)

    return reduce


@whole_rows
def cumsum(x: Bounded, axis: int, reverse: bool) -> Bounded:
    value = np.asarray(x.value, np.int64)
    sums = np.flip(np.cumsum(np.flip(value, axis), axis), axis) if reverse else value.cumsum(axis)
    lost = np.any(np.broadcast_to(x.error > 0, x.shape), axis=axis, keepdims=True)
    return whole(sums, np.broadcast_to(lost, x.shape), x.dtype)


REDUCTIONS: dict[str, Function] = {
    "sum": over_axes(np.sum, np.any),
    "max": over_axes(np.max, np.any),
    "min": over_axes(np.min, np.any),
    "cumsum": cumsum,
}


# --- places ---------------------------------------------------------------------------------------


@whole_rows
def take_along(x: Bounded, indices: Bounded, axis: int) -> Bounded:
    places = np.asarray(indices.value, np.int64)
    taken = x.map(lambda a, fill: np.take_along_axis(np.asarray(a), places, axis))
    return unknown_where(taken, np.broadcast_to(indices.lost, places.shape))


@whole_rows
def untake_along(x: Bounded, indices: Bounded, like: Bounded, axis: int) -> Bounded:
    places = np.moveaxis(np.asarray(indices.value, np.int64), axis, -1)

    def function(a: Array) -> Array:
        rows = np.moveaxis(np.asarray(a), axis, -1)
        sums = np.zeros(np.moveaxis(np.empty(like.shape), axis, -1).shape)
        for at in np.ndindex(rows.shape):
            sums[(*at[:-1], places[at])] += rows[at]
        return np.moveaxis(sums, -1, axis)

    def reach(mask: Array) -> Array:
        any_lost = np.any(mask, axis=axis, keepdims=True)
        return np.broadcast_to(any_lost, like.shape)

    unsure = reach(np.broadcast_to(indices.lost, indices.shape))
    return unknown_where(monotone(function, x, reach, 2 + x.shape[axis], function), unsure)


def take_at(x: Bounded, indices: Bounded, axis: int) -> Bounded:
    places = np.asarray(indices.value, np.int64)
    taken = x.map(lambda a, fill: np.take(np.asarray(a), places, axis=axis))
    return unknown_where(taken, over_slices(indices.lost, indices, x, taken.shape, axis))


def take_nearest(x: Bounded, indices: Bounded, axis: int) -> Bounded:
    if not x.shape[axis]:
        return take_at(padded(x, axis), as_places(indices, 1), axis)
    return take_at(x, as_places(indices, x.shape[axis]), axis)


def take_inside(x: Bounded, indices: Bounded, axis: int) -> Bounded:
    taken = take_nearest(x, indices, axis)
    places = np.asarray(indices.value)
    is_outside = (places < 0) | (places >= x.shape[axis])
    blank = over_slices(is_outside & ~indices.lost, indices, x, taken.shape, axis)
    return taken.map(lambda a, fill: np.where(blank, fill, a))


def as_places(indices: Bounded, length: int) -> Bounded:
    """The nearest indices that lie inside."""
    return replace(indices, value=np.clip(indices.value, 0, length - 1))


def padded(x: Bounded, axis: int) -> Bounded:
    """A slice of zeros more."""
    widths = [(0, int(i == axis % len(x.shape))) for i in range(len(x.shape))]
    return x.map(lambda a, fill: np.pad(a, widths, constant_values=fill))


def over_slices(mask: Array, indices: Bounded, x: Bounded, shape: Any, axis: int) -> Array:
    """What holds of indices, for each element of the slices of x that they take."""
    after = len(x.shape) - axis % len(x.shape) - 1
    mask = np.broadcast_to(mask, indices.shape).reshape((*indices.shape, *(1,) * after))
    return np.broadcast_to(mask, shape)


def untake_inside(x: Bounded, indices: Bounded, like: Bounded, axis: int) -> Bounded:
    length = like.shape[axis]
    if not length:
        return like.map(lambda a, fill: np.full(like.shape, fill))
    places = np.asarray(indices.value)
    is_outside = (places < 0) | (places >= length)
    blank = over_slices(is_outside & ~indices.lost, indices, like, x.shape, axis)
    kept = x.map(lambda a, fill: np.where(blank, fill, a))
    return untake_at(kept, as_places(indices, length), like, axis)


def untake_at(x: Bounded, indices: Bounded, like: Bounded, axis: int) -> Bounded:
    places = np.asarray(indices.value, np.int64)
    axis = axis % len(like.shape)

    def function(a: Array) -> Array:
        sums = np.zeros(like.shape)
        for at in np.ndindex(places.shape):
            here = (*(slice(None),) * axis, places[at])
            sums[here] += np.asarray(a)[(*(slice(None),) * axis, *at)]
        return sums

    def reach(mask: Array) -> Array:
        return np.full(like.shape, np.any(mask))

    unsure = reach(np.broadcast_to(indices.lost, places.shape))
    return unknown_where(monotone(function, x, reach, 2 + places.size, function), unsure)


@whole_rows
def last_put(indices: Bounded, like: Bounded, axis: int) -> Bounded:
    places = np.moveaxis(np.asarray(indices.value, np.int64), axis, -1)
    last = np.full(np.moveaxis(np.empty(like.shape), axis, -1).shape, -1)
    for at in np.ndindex(places.shape):
        last[(*at[:-1], places[at])] = at[-1]
    lost = np.any(np.broadcast_to(indices.lost, indices.shape), axis=axis, keepdims=True)
    shape = like.shape
    return whole(np.moveaxis(last, -1, axis), np.broadcast_to(lost, shape), np.dtype(INT64))


ROWS: dict[str, Function] = {
    "take_along": take_along,
    "take_at": take_at,
    "take_inside": take_inside,
    "take_nearest": take_nearest,
    "last_put": last_put,
}
WIDE: dict[str, Function] = {
    "untake_along": untake_along,
    "untake_at": untake_at,
    "untake_inside": untake_inside,
}
