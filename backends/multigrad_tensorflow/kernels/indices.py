"""TensorFlow's rows of the family of places, each function named as its op.

On a CPU what lies outside raises. On a GPU TensorFlow takes 0 there, in XLA the nearest element,
and both drop what is put there.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from multigrad.backend import lifted, rows_of
from multigrad.graph import ops

from .elementwise import accumulated
from .ordering import length_of, order, positions, sort_key, swap_last, take
from .shapes import moveaxis

Tensor = Any


@lifted
def argmax(x: Tensor, *, axis: int | None, keepdims: bool) -> Tensor:
    return largest(x, sort_key(x), axis, keepdims)


@lifted
def argmin(x: Tensor, *, axis: int | None, keepdims: bool) -> Tensor:
    key = tf.bitwise.invert(sort_key(x))
    if x.dtype.is_floating:
        key = tf.where(tf.math.is_nan(x), key.dtype.max, key)
    return largest(x, key, axis, keepdims)


def largest(x: Tensor, key: Tensor, axis: int | None, keepdims: bool) -> Tensor:
    """The place of the first of the largest keys."""
    if axis is None:
        place = tf.argmax(tf.reshape(key, [-1]))
        return tf.reshape(place, [1] * x.shape.rank) if keepdims else place
    place = tf.argmax(key, axis) if key.shape.rank < 8 else place_in_rows(key, axis)
    return tf.expand_dims(place, axis) if keepdims else place


def place_in_rows(key: Tensor, axis: int) -> Tensor:
    """TensorFlow's argmax takes 7 axes at most."""
    rows = moveaxis(key, source=axis, destination=-1)
    shape = tf.shape(rows)
    return tf.reshape(tf.argmax(tf.reshape(rows, [-1, shape[-1]]), -1), shape[:-1])


@lifted
def argsort(x: Tensor, *, axis: int, descending: bool) -> Tensor:
    return tf.cast(order(x, axis, descending), tf.int64)


@lifted
def take_along(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    return take(x, indices, axis)


def flat_places(indices: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return places along the last axis as places in `like` made flat, and how many it has: that is
    the place of those that lie outside, which would be other rows' else.
    """
    length, count = tf.cast(length_of(like), tf.int64), tf.size(like, tf.int64)
    flat = tf.reshape(indices, [-1, length_of(indices)])
    starts = tf.range(tf.shape(flat, tf.int64)[0])[:, None] * length
    is_inside = (flat >= 0) & (flat < length)
    return tf.reshape(tf.where(is_inside, flat + starts, count), [-1]), count


@lifted
def untake_along(x: Tensor, indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    values, like = swap_last(accumulated(x), axis), swap_last(like, axis)
    where, count = flat_places(swap_last(indices, axis), like)
    sums = tf.math.unsorted_segment_sum(tf.reshape(values, [-1]), where, count)
    return swap_last(tf.cast(tf.reshape(sums, tf.shape(like)), x.dtype), axis)


def untake_at(x: Tensor, indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    axis = range(like.shape.rank)[axis]
    first = tuple(range(indices.shape.rank))
    values = moveaxis(accumulated(x), source=tuple(axis + i for i in first), destination=first)
    length = length_of(like, axis)
    # A negative one, which TensorFlow would drop, is refused as one behind the last.
    places = tf.where(indices < 0, tf.cast(length, indices.dtype), indices)
    sums = tf.math.unsorted_segment_sum(values, places, length)
    return tf.cast(moveaxis(sums, source=0, destination=axis), x.dtype)


@lifted
def last_put(indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    indices, like = swap_last(indices, axis), swap_last(like, axis)
    where, count = flat_places(indices, like)
    places = tf.broadcast_to(positions(indices, -1), tf.shape(indices))
    last = tf.math.unsorted_segment_max(tf.reshape(places, [-1]), where, count)
    return swap_last(tf.reshape(tf.maximum(last, -1), tf.shape(like)), axis)


OPS = {
    **rows_of(vars()),
    ops.TAKE_AT: tf.gather,
}
