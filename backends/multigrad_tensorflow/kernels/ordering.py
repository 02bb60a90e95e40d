"""TensorFlow's rows of the ordering family, each function named as its op.

Its sorts and searches compare integers here, made of the bits of the floats in their order: with
floats its kernels leave NaN anywhere (2.21). Ranks must be known while tracing; lengths need not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from multigrad.backend import rows_of

from .elementwise import accumulated, logaddexp

Tensor = Any
Axis = int | tuple[int, ...] | None


def lifted(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Take scalars as arrays of one element, whichever axis is asked for."""

    @functools.wraps(function)
    def call(*arrays: Tensor, axis: Axis, **attrs: Any) -> Tensor:
        if all(array.shape.rank == 0 for array in arrays):
            lines = (tf.reshape(array, [1]) for array in arrays)
            return tf.reshape(function(*lines, axis=0, **attrs), [])
        return function(*arrays, axis=axis, **attrs)

    return call


def swap_last(x: Tensor, axis: int) -> Tensor:
    """x with an axis and the last one exchanged; its own inverse."""
    order = list(range(x.shape.rank))
    order[axis], order[-1] = order[-1], order[axis]
    return x if order == sorted(order) else tf.transpose(x, order)


def length_of(x: Tensor, axis: int = -1) -> Any:
    """The length of an axis: an int where it is known while tracing."""
    known = x.shape[axis]
    return tf.shape(x)[axis] if known is None else known


@lifted
def cumsum(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    return tf.cast(tf.cumsum(accumulated(x), axis, reverse=reverse), x.dtype)


@lifted
def cumprod(x: Tensor, *, axis: int) -> Tensor:
    return tf.cast(tf.math.cumprod(accumulated(x), axis), x.dtype)


@lifted
def logcumsumexp(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    return along(logaddexp, accumulated(x), axis, reverse, x.dtype)


@lifted
def discounted_sum(values: Tensor, y: Tensor, *, axis: int, reverse: bool) -> Tensor:
    def combine(later: Tensor, earlier: Tensor) -> Tensor:
        (value, own), (total, y) = tf.unstack(later), tf.unstack(earlier)
        share = tf.where(own == y, tf.ones_like(y), tf.exp(tf.minimum(own - y, 0.0)))
        return tf.stack([value + share * total, own])

    pair = tf.stack([accumulated(values), accumulated(y)])
    return along(combine, pair, range(values.shape.rank)[axis] + 1, reverse, values.dtype)[0]


def along(
    combine: Callable[[Tensor, Tensor], Tensor], x: Tensor, axis: int, reverse: bool, dtype: Any
) -> Tensor:
    """Combine each element with all before it along an axis (`reverse`: after it)."""
    x = swap_last(x, axis)
    sums = tf.reverse(scan(combine, tf.reverse(x, [-1])), [-1]) if reverse else scan(combine, x)
    return tf.cast(swap_last(sums, axis), dtype)


@lifted
def cummax(x: Tensor, *, axis: int) -> Tensor:
    return swap_last(scan(tf.maximum, swap_last(x, axis)), axis)


@lifted
def cummin(x: Tensor, *, axis: int) -> Tensor:
    return swap_last(scan(tf.minimum, swap_last(x, axis)), axis)


def scan(combine: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
    """Combine each element of the last axis with all before it, in log2(length) steps."""
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


def last_true(mask: Tensor) -> Tensor:
    """The index of the latest True along the last axis, -1 before the first."""
    return scan(tf.maximum, tf.where(mask, tf.range(length_of(mask)), -1))


@lifted
def hold(x: Tensor, mask: Tensor, *, axis: int) -> Tensor:
    latest, values = last_true(swap_last(mask, axis)), swap_last(x, axis)
    values = gather(values, tf.maximum(latest, 0))
    return swap_last(tf.where(latest < 0, tf.zeros([], x.dtype), values), axis)


@lifted
def unhold(x: Tensor, mask: Tensor, *, axis: int) -> Tensor:
    latest, values = last_true(swap_last(mask, axis)), swap_last(accumulated(x), axis)
    return swap_last(tf.cast(add_at(values, latest), x.dtype), axis)


def gather(values: Tensor, places: Tensor) -> Tensor:
    """The values at places along the last axis, each row by its own."""
    return tf.gather(values, places, axis=-1, batch_dims=values.shape.rank - 1)


def add_at(values: Tensor, places: Tensor) -> Tensor:
    """Sums of the values at places along the last axis; those at negative ones are dropped."""
    length = length_of(values)
    flat = tf.reshape(places, [-1, length])
    rows = tf.range(tf.shape(flat)[0])[:, None] * length
    where = tf.where(flat < 0, -1, rows + flat)
    sums = tf.math.unsorted_segment_sum(
        tf.reshape(values, [-1]), tf.reshape(where, [-1]), tf.size(values)
    )
    return tf.reshape(sums, tf.shape(values))


# --- sorting -----------------------------------------------------------------------------------
def sort_key(x: Tensor) -> Tensor:
    """Integers in the order of x's elements: -0 equals 0, NaN is the largest."""
    if x.dtype.is_integer:
        return x
    wide = accumulated(x)
    integer = tf.int64 if wide.dtype == tf.float64 else tf.int32
    bits = tf.bitcast(wide + tf.zeros([], wide.dtype), integer)  # -0 + 0 is 0
    ordered = tf.where(bits < 0, tf.bitwise.bitwise_xor(bits, integer.max), bits)
    return tf.where(tf.math.is_nan(wide), tf.constant(integer.max, integer), ordered)


def order(x: Tensor, descending: bool) -> Tensor:
    """The stable permutation that sorts the last axis."""
    key = sort_key(x)
    key = key if descending else tf.bitwise.invert(key)
    return tf.math.top_k(key, length_of(x)).indices  # ties: the lower index first


def ranks(x: Tensor, descending: bool) -> Tensor:
    """The place of each element of the last axis in sorted x."""
    return tf.math.top_k(-order(x, descending), length_of(x)).indices


@lifted
def sort(x: Tensor, *, axis: int, descending: bool) -> Tensor:
    last = swap_last(x, axis)
    return swap_last(gather(last, order(last, descending)), axis)


@lifted
def sort_like(values: Tensor, x: Tensor, *, axis: int, descending: bool) -> Tensor:
    last = swap_last(x, axis)
    return swap_last(gather(swap_last(values, axis), order(last, descending)), axis)


@lifted
def unsort(values: Tensor, x: Tensor, *, axis: int, descending: bool) -> Tensor:
    last = swap_last(x, axis)
    return swap_last(gather(swap_last(values, axis), ranks(last, descending)), axis)


@lifted
def argmax_mask(x: Tensor, *, axis: int | None) -> Tensor:
    return first_largest(x, axis, sort_key(x))


@lifted
def argmin_mask(x: Tensor, *, axis: int | None) -> Tensor:
    key = tf.bitwise.invert(sort_key(x))
    return first_largest(x, axis, tf.where(tf.math.is_nan(x), key.dtype.max, key))


def first_largest(x: Tensor, axis: int | None, key: Tensor) -> Tensor:
    """Mark the first element with the largest key."""
    if axis is None:
        flat = tf.reshape(key, [-1])
        return tf.reshape(first_largest(tf.reshape(x, [-1]), 0, flat), tf.shape(x))
    last = swap_last(key, axis)
    is_largest = last == tf.reduce_max(last, -1, True)
    first = is_largest & (tf.cumsum(tf.cast(is_largest, tf.int32), -1) == 1)
    return swap_last(first, axis)


@lifted
def top_k_mask(x: Tensor, *, axis: int, k: int) -> Tensor:
    return swap_last(ranks(swap_last(x, axis), True) < k, axis)


# --- quantiles ---------------------------------------------------------------------------------
def axes_last(x: Tensor, axis: Axis) -> tuple[list[int], int]:
    """The permutation that puts the axes given at the end, and their number."""
    rank = x.shape.rank
    given = range(rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = [range(rank)[i] for i in given]
    return [i for i in range(rank) if i not in axes] + axes, len(axes)


def as_rows(x: Tensor, permutation: list[int], number: int) -> Tensor:
    """x permuted, with the last axes merged into one."""
    last = tf.transpose(x, permutation)
    kept = x.shape.rank - number
    shape, static = tf.shape(last), last.shape
    length = static[kept:].num_elements()
    merged = tf.reduce_prod(shape[kept:]) if length is None else length
    return tf.reshape(last, tf.concat([shape[:kept], [merged]], 0))


def neighbors(length: Any, q: float) -> tuple[Tensor, Tensor]:
    """The place below the q-quantile of that many sorted values, and the weight of the next one."""
    place = tf.constant(q, tf.float64) * tf.cast(tf.maximum(length - 1, 0), tf.float64)
    low = tf.floor(place)
    return tf.cast(low, tf.int32), place - low


def quantile(x: Tensor, *, axis: Axis, keepdims: bool, q: float) -> Tensor:
    if x.shape.rank == 0:
        return tf.identity(x)
    permutation, number = axes_last(x, axis)
    rows = as_rows(accumulated(x), permutation, number)
    length = length_of(rows)
    # A NaN at the end stands for what an empty row lacks.
    nan = tf.fill(tf.concat([tf.shape(rows)[:-1], [1]], 0), tf.constant(float("nan"), rows.dtype))
    ordered = tf.concat([gather(rows, order(rows, False)), nan], -1)
    low, weight = neighbors(length, q)
    weight = tf.cast(weight, rows.dtype)
    first = tf.gather(ordered, low, axis=-1)
    mixed = first * (1 - weight) + tf.gather(ordered, tf.minimum(low + 1, length), axis=-1) * weight
    result = tf.where(weight == 0, first, mixed)
    largest = tf.gather(ordered, tf.maximum(length - 1, 0), axis=-1)
    result = tf.cast(tf.where(tf.math.is_nan(largest), largest, result), x.dtype)
    if not keepdims:
        return result
    for position in sorted(permutation[len(permutation) - number :]):
        result = tf.expand_dims(result, position)
    return result


@lifted
def quantile_weights(x: Tensor, *, axis: Axis, q: float) -> Tensor:
    permutation, number = axes_last(x, axis)
    rows = as_rows(x, permutation, number)
    low, weight = neighbors(length_of(rows), q)
    place, zero = ranks(rows, False), tf.zeros([], tf.float64)
    weights = tf.where(place == low, 1 - weight, tf.where(place == low + 1, weight, zero))
    back = [permutation.index(i) for i in range(len(permutation))]
    moved = tf.reshape(weights, tf.gather(tf.shape(x), permutation))
    return tf.cast(tf.transpose(moved, back), x.dtype)


OPS = rows_of(vars())
