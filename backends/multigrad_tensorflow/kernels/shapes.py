"""TensorFlow's kernels of the ops on shapes and indices, and of sorts and cumulations.

Ranks must be known while tracing; lengths need not be. An index outside raises on a CPU. On a GPU
TensorFlow reads 0 there, in XLA the nearest element, and both drop writes. Sorts and searches
compare integers, made of the floats' bits in their order: with floats TensorFlow (2.21) may put NaN
anywhere. To test, with `--backends=tensorflow`: `test_ops_shapes.py` and `test_ops_ordering.py` of
the conformance suite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from multigrad.core import ops
from multigrad.core.backend.rows import rows_of
from multigrad.engine.backend.array_rows import lifted, orderings
from multigrad.engine.ops.indexing import as_index, as_pairs, from_front

from ..core.kernels.elementwise import accumulated, full_like

Tensor: TypeAlias = Any
Axis = int | tuple[int, ...] | None


# --- axes, lengths and places ---------------------------------------------------------------------
def swap_last(x: Tensor, axis: int) -> Tensor:
    return x if axis in (-1, x.shape.rank - 1) else swapaxes(x, axis1=axis, axis2=-1)


def positions(x: Tensor, axis: int) -> Tensor:
    shape = [1] * x.shape.rank
    shape[axis] = -1
    return tf.reshape(tf.range(length_of(x, axis), dtype=tf.int64), shape)


def length_of(x: Tensor, axis: int = -1) -> Any:
    length = x.shape[axis]
    return tf.shape(x)[axis] if length is None else length


def flat_places(indices: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return places along the last axis as places in the flattened tensor, and its element count.

    A place outside becomes that count, which is dropped; else it would be in another row.
    """
    length, count = tf.cast(length_of(like), tf.int64), tf.size(like, tf.int64)
    rows = tf.reshape(indices, [-1, length_of(indices)])
    starts = tf.range(tf.shape(rows, tf.int64)[0])[:, None] * length
    is_inside = (rows >= 0) & (rows < length)
    return tf.reshape(tf.where(is_inside, rows + starts, count), [-1]), count


def is_on_or_below_diagonal(x: Tensor, offset: int) -> Tensor:
    rows, columns = tf.range(length_of(x, -2)), tf.range(length_of(x))
    return columns - rows[:, None] <= offset


def indices_from_front(x: Tensor, indices: tuple[int, ...], axis: int) -> Tensor:
    length = length_of(x, axis)
    if isinstance(length, int):
        # Raises for an index outside.
        from_front(indices, length)
    places = tf.constant(indices, tf.int32, [len(indices)])
    return tf.where(places < 0, places + length, places)


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    total = tf.maximum(a, b) + tf.math.log1p(tf.exp(-tf.abs(a - b)))
    # equal infinities have no difference
    return tf.where(a == b, a + math.log(2), total)


# --- cumulations: results along an axis, each of all elements up to it ----------------------------
def cumulated(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Return the cumulation of `combine` as a kernel."""

    @lifted
    def call(x: Tensor, *, axis: int, reverse: bool = False) -> Tensor:
        return along(combine, x, axis, reverse)

    return call


@lifted
def discounted_sum(values: Tensor, y: Tensor, *, axis: int, reverse: bool) -> Tensor:
    """Return the sums of values[j] exp(y[i] - y[j]), j up to i, for y that falls along the axis.

    From i on if `reverse`.
    """

    def combine(later: Tensor, earlier: Tensor) -> Tensor:
        (value, exponent), (total, y0) = tf.unstack(later), tf.unstack(earlier)
        # Equal infinite exponents count in full; above 0 a difference gets only by rounding.
        share = tf.where(exponent == y0, tf.ones_like(y0), tf.exp(tf.minimum(exponent - y0, 0.0)))
        return tf.stack([value + share * total, exponent])

    pair = tf.stack([values, y])
    return along(combine, pair, range(values.shape.rank)[axis] + 1, reverse)[0]


def along(
    combine: Callable[[Tensor, Tensor], Tensor], x: Tensor, axis: int, reverse: bool
) -> Tensor:
    """Return the cumulation of `combine` along an axis, from its end if `reverse`."""
    x = swap_last(x, axis)
    sums = tf.reverse(scan(combine, tf.reverse(x, [-1])), [-1]) if reverse else scan(combine, x)
    return swap_last(sums, axis)


def scan(combine: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the cumulation of `combine(later, earlier)` along the last axis.

    In log2(length) steps: each combines an element with the one that is twice as far before it.
    """
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


def sort_key(x: Tensor) -> Tensor:
    """Return integers in the order of x's elements: -0 equals 0, NaN is the largest."""
    if x.dtype.is_integer:
        return x
    floats = accumulated(x)
    integer = tf.int64 if floats.dtype == tf.float64 else tf.int32
    bits = tf.bitcast(floats + tf.zeros([], floats.dtype), integer)  # -0 + 0 is 0
    # Negative floats are ordered against their bits.
    ordered_bits = tf.where(bits < 0, tf.bitwise.bitwise_xor(bits, integer.max), bits)
    return tf.where(tf.math.is_nan(floats), tf.constant(integer.max, integer), ordered_bits)


def order(x: Tensor, axis: int, descending: bool) -> Tensor:
    """Return the places of x's elements in sorted order, along an axis."""
    key = sort_key(swap_last(x, axis))
    key = key if descending else tf.bitwise.invert(key)
    places = tf.math.top_k(key, length_of(key)).indices  # ties: the lower index first
    return swap_last(places, axis)


def take_in_rows(x: Tensor, places: Tensor, axis: int) -> Tensor:
    """Return the elements of x at places along an axis, which each row has of its own."""
    values, places = swap_last(x, axis), swap_last(places, axis)
    return swap_last(tf.gather(values, places, axis=-1, batch_dims=x.shape.rank - 1), axis)


@lifted
def argmax(x: Tensor, *, axis: int | None, keepdims: bool) -> Tensor:
    return place_of_largest(x, sort_key(x), axis, keepdims)


@lifted
def argmin(x: Tensor, *, axis: int | None, keepdims: bool) -> Tensor:
    key = tf.bitwise.invert(sort_key(x))
    if x.dtype.is_floating:
        key = tf.where(tf.math.is_nan(x), key.dtype.max, key)
    return place_of_largest(x, key, axis, keepdims)


def place_of_largest(x: Tensor, key: Tensor, axis: int | None, keepdims: bool) -> Tensor:
    if axis is None:
        place = tf.argmax(tf.reshape(key, [-1]))
        return tf.reshape(place, [1] * x.shape.rank) if keepdims else place
    # TensorFlow's argmax takes 7 axes at most.
    place = tf.argmax(key, axis) if key.shape.rank < 8 else place_in_rows(key, axis)
    return tf.expand_dims(place, axis) if keepdims else place


def place_in_rows(key: Tensor, axis: int) -> Tensor:
    rows = moveaxis(key, source=axis, destination=-1)
    shape = tf.shape(rows)
    return tf.reshape(tf.argmax(tf.reshape(rows, [-1, shape[-1]]), -1), shape[:-1])


@lifted
def argsort(x: Tensor, *, axis: int, descending: bool) -> Tensor:
    return tf.cast(order(x, axis, descending), tf.int64)


# --- indices that are tensors ---------------------------------------------------------------------
@lifted
def untake_along(x: Tensor, indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    """Return x added at its indices, each row's own, to zeros shaped like `like`."""
    values, like = swap_last(accumulated(x), axis), swap_last(like, axis)
    places, count = flat_places(swap_last(indices, axis), like)
    sums = tf.math.unsorted_segment_sum(tf.reshape(values, [-1]), places, count)
    return swap_last(tf.cast(tf.reshape(sums, tf.shape(like)), x.dtype), axis)


def untake_at(x: Tensor, indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    """Return the slices of x added at their indices along an axis to zeros shaped like `like`."""
    axis = range(like.shape.rank)[axis]
    front = tuple(range(indices.shape.rank))
    values = moveaxis(accumulated(x), source=tuple(axis + i for i in front), destination=front)
    length = length_of(like, axis)
    # TensorFlow would drop a negative index; beyond the last it raises.
    places = tf.where(indices < 0, tf.cast(length, indices.dtype), indices)
    sums = tf.math.unsorted_segment_sum(values, places, length)
    return tf.cast(moveaxis(sums, source=0, destination=axis), x.dtype)


@lifted
def last_put(indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    """Return for each place of `like` the last position in `indices` that names it, or -1."""
    indices, like = swap_last(indices, axis), swap_last(like, axis)
    targets, count = flat_places(indices, like)
    places = tf.broadcast_to(positions(indices, -1), tf.shape(indices))
    last_positions = tf.math.unsorted_segment_max(tf.reshape(places, [-1]), targets, count)
    return swap_last(tf.reshape(tf.maximum(last_positions, -1), tf.shape(like)), axis)


# --- shapes and axes ------------------------------------------------------------------------------
def permute_dims(x: Tensor, *, axes: Any) -> Tensor:
    return tf.transpose(x, None if axes is None else [range(x.shape.rank)[i] for i in axes])


def swapaxes(x: Tensor, *, axis1: int, axis2: int) -> Tensor:
    axes = list(range(x.shape.rank))
    axes[axis1], axes[axis2] = axes[axis2], axes[axis1]
    return tf.transpose(x, axes)


def moveaxis(x: Tensor, *, source: Any, destination: Any) -> Tensor:
    dims = range(x.shape.rank)
    sources = [dims[i] for i in (source if isinstance(source, tuple) else (source,))]
    places = [dims[i] for i in (destination if isinstance(destination, tuple) else (destination,))]
    axes = [i for i in dims if i not in sources]
    for place, axis in sorted(zip(places, sources, strict=True)):
        axes.insert(place, axis)
    return tf.transpose(x, axes)


def flip(x: Tensor, *, axis: Axis) -> Tensor:
    if x.shape.rank == 0:
        return tf.identity(x)
    axes = range(x.shape.rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return tf.reverse(x, list(axes))


def roll(x: Tensor, *, shift: Any, axis: Axis) -> Tensor:
    if axis is None or x.shape.rank == 0:
        total = sum(shift) if isinstance(shift, tuple) else shift
        return tf.reshape(tf.roll(tf.reshape(x, [-1]), total, 0), tf.shape(x))
    return tf.roll(x, shift, axis)


def tril(x: Tensor, *, offset: int) -> Tensor:
    return tf.where(is_on_or_below_diagonal(x, offset), x, tf.zeros([], x.dtype))


def triu(x: Tensor, *, offset: int) -> Tensor:
    return tf.where(is_on_or_below_diagonal(x, offset - 1), tf.zeros([], x.dtype), x)


# --- indices that are fixed -----------------------------------------------------------------------
def getitem(x: Tensor, *, index: tuple[Any, ...]) -> Tensor:
    return x[as_index(index)]


def setitem(x: Tensor, like: Tensor, *, index: tuple[Any, ...]) -> Tensor:
    """Return x at `index` in zeros shaped like `like`; repeated places add."""
    if x.dtype == tf.bool:  # bools have no sums
        return tf.cast(setitem(tf.cast(x, tf.int32), like, index=index), tf.bool)
    places = tf.reshape(tf.range(tf.size(like)), tf.shape(like))[as_index(index)]
    values = tf.reshape(accumulated(x), [-1])
    sums = tf.math.unsorted_segment_sum(values, tf.reshape(places, [-1]), tf.size(like))
    return tf.cast(tf.reshape(sums, tf.shape(like)), x.dtype)


def put(x: Tensor, value: Any, *, index: tuple[Any, ...]) -> Tensor:
    item, part = as_index(index), x[as_index(index)]
    value = full_like(part, value)
    # XLA's kernel (2.21) takes no other steps, and no part without elements.
    if any(isinstance(each, slice) and each.step not in (None, 1, -1) for each in item):
        is_written = setitem(tf.ones_like(part, tf.bool), x, index=index)
        return tf.where(is_written, setitem(value, x, index=index), x)
    if 0 in part.shape:
        return tf.identity(x)
    return tf.raw_ops.TensorStridedSliceUpdate(input=x, value=value, **strided(item))


def strided(item: tuple[Any, ...]) -> dict[str, Any]:
    """Return an index as TensorFlow's kernels take it: numbers of each item, and masks."""
    others = {Ellipsis: "ellipsis_mask", None: "new_axis_mask"}
    masks = dict.fromkeys((*others.values(), "begin_mask", "end_mask", "shrink_axis_mask"), 0)
    numbers: dict[str, list[int]] = {"begin": [], "end": [], "strides": []}
    for i, each in enumerate(item):
        bounds = each
        if isinstance(each, int):
            masks["shrink_axis_mask"] |= 1 << i
            bounds = slice(each, each + 1)
        elif not isinstance(each, slice):
            masks[others[each]] |= 1 << i
            bounds = slice(None)
        masks["begin_mask"] |= (bounds.start is None) << i
        masks["end_mask"] |= (bounds.stop is None) << i
        for name, number in zip(numbers, (bounds.start, bounds.stop, bounds.step), strict=True):
            numbers[name].append(number if number is not None else int(name == "strides"))
    return {**numbers, **masks}


def take(x: Tensor, *, indices: tuple[int, ...], axis: int) -> Tensor:
    return tf.gather(x, indices_from_front(x, indices, axis), axis=axis)


def untake(x: Tensor, like: Tensor, *, indices: tuple[int, ...], axis: int) -> Tensor:
    """Return the slices of x added at their indices along an axis to zeros shaped like `like`."""
    values = moveaxis(accumulated(x), source=axis, destination=0)
    sums = tf.math.unsorted_segment_sum(
        values, indices_from_front(like, indices, axis), length_of(like, axis)
    )
    return tf.cast(moveaxis(sums, source=0, destination=axis), x.dtype)


def tile(x: Tensor, *, repetitions: tuple[int, ...]) -> Tensor:
    missing = x.shape.rank - len(repetitions)
    if missing < 0:
        x = tf.reshape(x, tf.concat([[1] * -missing, tf.shape(x)], 0))
    return tf.tile(x, (*(1,) * missing, *repetitions))


def repeat(x: Tensor, *, repeats: int, axis: int) -> Tensor:
    axis = range(x.shape.rank)[axis]
    copies = [1] * (x.shape.rank + 1)
    copies[axis + 1] = repeats
    shape = [length_of(x, i) for i in range(x.shape.rank)]
    shape[axis] = shape[axis] * repeats
    return tf.reshape(tf.tile(tf.expand_dims(x, axis + 1), copies), shape)


def pad(x: Tensor, *, widths: tuple[Any, ...], fill: float) -> Tensor:
    pairs = as_pairs(widths, x.shape.rank)
    result = tf.pad(x, pairs)
    if fill == 0:
        return result
    # tf.vectorized_map drops pad's constant_values and fills with 0 (2.21).
    is_inside = tf.pad(tf.ones_like(x, tf.bool), pairs)
    with np.errstate(over="ignore"):  # a number too large for the dtype is inf
        # `tf.constant` refuses a float for an integer or a bool.
        border = x.dtype.as_numpy_dtype(fill)
    return tf.where(is_inside, result, tf.constant(border, x.dtype))


def concatenate(*arrays: Tensor, axis: int) -> Tensor:
    return tf.concat(arrays, axis)


def stack(*arrays: Tensor, axis: int) -> Tensor:
    return tf.stack(arrays, axis)


def part(x: Tensor, like: Tensor, start: Any, *, axis: int) -> Tensor:
    """Return the part of x from `start` on along an axis, as long as `like`."""
    begin, size = [0] * x.shape.rank, [-1] * x.shape.rank
    begin[axis], size[axis] = start, length_of(like, axis)
    return tf.slice(x, begin, size)


def unpart(x: Tensor, like: Tensor, start: Any, *, axis: int) -> Tensor:
    """Return x from `start` on along an axis in zeros shaped like `like`."""
    sides = [[0, 0] for _ in range(x.shape.rank)]
    sides[axis] = [start, length_of(like, axis) - start - length_of(x, axis)]
    return tf.ensure_shape(tf.pad(x, sides), like.shape)


# --- masks as bits, eight to a byte, the first in the highest bit ---------------------------------
WEIGHTS = (128, 64, 32, 16, 8, 4, 2, 1)


def pack(mask: Tensor) -> Tensor:
    flat = tf.reshape(mask, (-1,))
    # TensorFlow has no packbits: the bits are summed by their weights
    n_missing: Any = tf.math.floormod(-tf.size(flat), 8)
    flat = tf.pad(flat, [[0, n_missing]])
    columns = tf.cast(tf.reshape(flat, (-1, 8)), tf.int32)
    return tf.cast(tf.reduce_sum(columns * tf.constant(WEIGHTS), -1), tf.uint8)


def unpack(bits: Tensor, like: Tensor) -> Tensor:
    weights = tf.constant(WEIGHTS, tf.uint8)
    flat = tf.reshape(tf.bitwise.bitwise_and(bits[:, None], weights) != 0, (-1,))
    shape = tf.shape(like)
    return tf.ensure_shape(tf.reshape(flat[: tf.reduce_prod(shape)], shape), like.shape)


OPS = {
    **orderings(order, take_in_rows),
    # A function named as an op is that op's kernel.
    **rows_of(vars()),
    ops.TAKE_AT: tf.gather,
    ops.TAKE_ALONG: lifted(take_in_rows),
    ops.CUMSUM: lifted(tf.cumsum),
    ops.CUMPROD: lifted(tf.math.cumprod),
    ops.LOGCUMSUMEXP: cumulated(logaddexp),
    ops.CUMMAX: cumulated(tf.maximum),
    ops.CUMMIN: cumulated(tf.minimum),
}
