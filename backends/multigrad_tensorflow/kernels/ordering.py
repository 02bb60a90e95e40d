"""TensorFlow's kernels of sorts, cumulative ops and extremes, named as their ops.

Sorts and searches compare integers, made of the floats' bits in their order: with floats TensorFlow
(2.21) may put NaN anywhere. Ranks must be known while tracing; lengths need not be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from multigrad.backend import lifted, orderings, rows_of

from .elementwise import accumulated, logaddexp

Tensor = Any
Axis = int | tuple[int, ...] | None


def swap_last(x: Tensor, axis: int) -> Tensor:
    order = list(range(x.shape.rank))
    order[axis], order[-1] = order[-1], order[axis]
    return x if order == sorted(order) else tf.transpose(x, order)


def positions(x: Tensor, axis: int) -> Tensor:
    shape = [1] * x.shape.rank
    shape[axis] = -1
    return tf.reshape(tf.range(length_of(x, axis), dtype=tf.int64), shape)


def length_of(x: Tensor, axis: int = -1) -> Any:
    known = x.shape[axis]
    return tf.shape(x)[axis] if known is None else known


@lifted
def cumsum(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    return tf.cumsum(x, axis, reverse=reverse)


@lifted
def cumprod(x: Tensor, *, axis: int) -> Tensor:
    return tf.math.cumprod(x, axis)


@lifted
def logcumsumexp(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    return along(logaddexp, x, axis, reverse)


@lifted
def discounted_sum(values: Tensor, y: Tensor, *, axis: int, reverse: bool) -> Tensor:
    def combine(later: Tensor, earlier: Tensor) -> Tensor:
        (value, own), (total, y) = tf.unstack(later), tf.unstack(earlier)
        share = tf.where(own == y, tf.ones_like(y), tf.exp(tf.minimum(own - y, 0.0)))
        return tf.stack([value + share * total, own])

    pair = tf.stack([values, y])
    return along(combine, pair, range(values.shape.rank)[axis] + 1, reverse)[0]


def along(
    combine: Callable[[Tensor, Tensor], Tensor], x: Tensor, axis: int, reverse: bool
) -> Tensor:
    """Return the cumulation of `combine` along an axis, from its end if `reverse`."""
    x = swap_last(x, axis)
    sums = tf.reverse(scan(combine, tf.reverse(x, [-1])), [-1]) if reverse else scan(combine, x)
    return swap_last(sums, axis)


@lifted
def cummax(x: Tensor, *, axis: int) -> Tensor:
    return swap_last(scan(tf.maximum, swap_last(x, axis)), axis)


@lifted
def cummin(x: Tensor, *, axis: int) -> Tensor:
    return swap_last(scan(tf.minimum, swap_last(x, axis)), axis)


def scan(combine: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the cumulation of `combine` along the last axis, in log2(length) steps."""
    length = length_of(x)

    def step(shift: Any, x: Tensor) -> tuple[Any, Tensor]:
        return shift * 2, tf.concat([x[..., :shift], combine(x[..., shift:], x[..., :-shift])], -1)

    if isinstance(length, int):
        shift = 1
        while shift < length:
            shift, x = step(shift, x)
        return x
    shapes = [tf.TensorShape([]), x.shape]
    return tf.while_loop(lambda shift, x: shift < length, step, [tf.constant(1), x], shapes)[1]


# --- sorting -----------------------------------------------------------------------------------
def sort_key(x: Tensor) -> Tensor:
    """Return integers in the order of x's elements: -0 equals 0, NaN is the largest."""
    if x.dtype.is_integer:
        return x
    wide = accumulated(x)
    integer = tf.int64 if wide.dtype == tf.float64 else tf.int32
    bits = tf.bitcast(wide + tf.zeros([], wide.dtype), integer)  # -0 + 0 is 0
    # negative floats are ordered against their bits
    ordered = tf.where(bits < 0, tf.bitwise.bitwise_xor(bits, integer.max), bits)
    return tf.where(tf.math.is_nan(wide), tf.constant(integer.max, integer), ordered)


def order(x: Tensor, axis: int, descending: bool) -> Tensor:
    key = sort_key(swap_last(x, axis))
    key = key if descending else tf.bitwise.invert(key)
    places = tf.math.top_k(key, length_of(key)).indices  # ties: the lower index first
    return swap_last(places, axis)


def take(x: Tensor, places: Tensor, axis: int) -> Tensor:
    values, places = swap_last(x, axis), swap_last(places, axis)
    return swap_last(tf.gather(values, places, axis=-1, batch_dims=x.shape.rank - 1), axis)


OPS = {**orderings(order, take), **rows_of(vars())}
