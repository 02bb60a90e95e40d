"""What integers mean, which wrap around."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..bounded import INT32, Bounded, Function
from .arrays import axes_of

Array = Any
LARGEST = 2**31 - 1  # where JAX has no int64, what is larger is another number there


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


def cumsum(x: Bounded, axis: int, reverse: bool) -> Bounded:
    """A scalar counts as one element along any axis."""
    axis = axis if x.shape else 0
    value, doubt = map(np.atleast_1d, (np.asarray(x.value, np.int64), x.error > 0))
    sums = np.flip(np.cumsum(np.flip(value, axis), axis), axis) if reverse else value.cumsum(axis)
    lost = np.any(np.broadcast_to(doubt, value.shape), axis=axis, keepdims=True)
    lost = np.broadcast_to(lost, value.shape).reshape(x.shape)
    return whole(sums.reshape(x.shape), lost, x.dtype)


REDUCTIONS: dict[str, Function] = {
    "sum": over_axes(np.sum, np.any),
    "max": over_axes(np.max, np.any),
    "min": over_axes(np.min, np.any),
    "cumsum": cumsum,
}
