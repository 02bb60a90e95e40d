"""TensorFlow's kernels of the ops on arrays, and of convolutions.

Its CPU kernels of convolutions need channels last, have no dilation together with strides, no
groups in 3 dimensions, and few gradients. So gradients are convolutions too, of cotangents with
zeros between their elements.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import tensorflow as tf

from multigrad.backend import rows_of
from multigrad.graph import ops
from multigrad.graph.ir.op import Op
from multigrad.graph.ops.arrays.products import as_matrix

from . import linalg, ordering, random, shapes
from .elementwise import accumulated
from .ordering import length_of

Tensor = Any
Ints = tuple[int, ...]
Axis = int | tuple[int, ...] | None


def windows(x: Tensor, *, sizes: Ints, strides: Ints, dilations: Ints) -> Tensor:
    first = x.shape.rank - len(sizes)
    for i, (size, stride, dilation) in enumerate(zip(sizes, strides, dilations, strict=True)):
        count = (length_of(x, first + i) - dilation * (size - 1) - 1) // stride + 1
        places = stride * tf.range(count)[:, None] + dilation * tf.range(size)
        seen = tf.gather(x, places, axis=first + i)
        x = moved_last(seen, first + i + 1)
    return x


def moved_last(x: Tensor, axis: int) -> Tensor:
    others = [i for i in range(x.shape.rank) if i != axis]
    return tf.transpose(x, [*others, axis])


def unwindows(x: Tensor, like: Tensor, *, sizes: Ints, strides: Ints, dilations: Ints) -> Tensor:
    first, sums = like.shape.rank - len(sizes), accumulated(x)
    for i in range(len(sizes) - 1, -1, -1):  # the last axis of sums is that of its windows
        axis, length = first + i, length_of(like, first + i)
        parts = []
        for place in range(sizes[i]):
            part = spread(tf.gather(sums, place, axis=-1), axis, strides[i])
            before = place * dilations[i]
            parts.append(bordered(part, axis, before, length - before - length_of(part, axis)))
        sums = tf.add_n(parts)
    return tf.cast(sums, x.dtype)


def spread(x: Tensor, axis: int, step: int) -> Tensor:
    """Return x with step - 1 zeros between the elements along an axis."""
    if step == 1:
        return x
    length = length_of(x, axis)
    apart = bordered(tf.expand_dims(x, axis + 1), axis + 1, 0, step - 1)
    shape = [length_of(x, i) for i in range(x.shape.rank)]
    whole = tf.reshape(apart, [*shape[:axis], length * step, *shape[axis + 1 :]])
    return cut(whole, axis, (length - 1) * step + 1)


def bordered(x: Tensor, axis: int, before: Any, after: Any) -> Tensor:
    widths = [[before, after] if i == axis else [0, 0] for i in range(x.shape.rank)]
    return tf.pad(x, widths)


def cut(x: Tensor, axis: int, length: Any) -> Tensor:
    return x[(*(slice(None),) * axis, slice(length))]


def conv(x: Tensor, w: Tensor, *, strides: Ints, dilations: Ints, groups: int) -> Tensor:
    kernels = channels_last(w, kernels=True)
    return channels_first(product(channels_last(x), kernels, strides, dilations, groups))


def channels_last(x: Tensor, kernels: bool = False) -> Tensor:
    """Return x with channels last; kernels as (*sizes, channels, out channels)."""
    axes = range(2, x.shape.rank)
    return tf.transpose(x, [*axes, 1, 0] if kernels else [0, *axes, 1])


def channels_first(x: Tensor) -> Tensor:
    last = x.shape.rank - 1
    return tf.transpose(x, [0, last, *range(1, last)])


def product(x: Tensor, w: Tensor, strides: Ints, dilations: Ints, groups: int) -> Tensor:
    if max(strides) > 1 and max(dilations) > 1:
        # strides by dropping results: no CPU kernel has them with dilations
        every = tuple(slice(None, None, step) for step in strides)
        return product(x, w, (1,) * len(strides), dilations, groups)[(slice(None), *every)]
    if groups > 1 and len(strides) == 3:
        # no 3-D CPU kernel has groups
        pairs = zip(tf.split(x, groups, -1), tf.split(w, groups, -1), strict=True)
        return tf.concat([product(a, b, strides, dilations, 1) for a, b in pairs], -1)
    return tf.nn.convolution(x, w, list(strides), "VALID", dilations=list(dilations))


def conv_left(
    cotangent: Tensor, w: Tensor, like: Tensor, *, strides: Ints, dilations: Ints, groups: int
) -> Tensor:
    """Return the gradient by x: a convolution of the spread cotangent with flipped kernels."""
    given, n = accumulated(cotangent), len(strides)
    for i in range(n):
        given = spread(given, 2 + i, strides[i])
        reach = dilations[i] * (length_of(w, 2 + i) - 1)
        # elements beyond the last window, which no output saw
        rest = length_of(like, 2 + i) - length_of(given, 2 + i) - reach
        given = bordered(given, 2 + i, reach, reach + rest)
    sizes, inner = [length_of(w, 2 + i) for i in range(n)], length_of(w, 1)
    # in and out channels change places within each group
    split = tf.reshape(accumulated(w), [groups, -1, inner, *sizes])
    split = tf.reverse(split, list(range(3, 3 + n)))
    split = tf.transpose(split, [*range(3, 3 + n), 1, 0, 2])
    kernels = tf.reshape(split, [*sizes, -1, groups * inner])
    result = product(channels_last(given), kernels, (1,) * n, dilations, groups)
    return tf.cast(channels_first(result), cotangent.dtype)


def conv_right(
    x: Tensor, cotangent: Tensor, like: Tensor, *, strides: Ints, dilations: Ints, groups: int
) -> Tensor:
    """Return the gradient by w: a convolution of x with the spread cotangent as its kernels."""
    seen, given, n = accumulated(x), accumulated(cotangent), len(strides)
    for i in range(n):
        given = spread(given, 2 + i, strides[i])
        reach = dilations[i] * (length_of(like, 2 + i) - 1)
        seen = cut(seen, 2 + i, length_of(given, 2 + i) + reach)
    lengths, inner = [length_of(seen, 2 + i) for i in range(n)], length_of(like, 1)
    # examples become channels, so that the products are summed over them
    seen = tf.reshape(seen, [-1, groups, inner, *lengths])
    seen = tf.transpose(seen, [2, *range(3, 3 + n), 1, 0])
    seen = tf.reshape(seen, [inner, *lengths, groups * length_of(x, 0)])
    kernels = tf.transpose(given, [*range(2, 2 + n), 0, 1])
    result = product(seen, kernels, dilations, (1,) * n, groups)
    return tf.cast(tf.transpose(result, [n + 1, 0, *range(1, n + 1)]), cotangent.dtype)


def over(x: Tensor, axis: Axis) -> Axis:
    # a scalar has no axes, whichever are named
    return () if x.shape.rank == 0 else axis


def over_axes(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reduce(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
        return function(x, over(x, axis), keepdims)

    return reduce


def count_nonzero(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    ones = tf.cast(tf.not_equal(x, tf.zeros([], x.dtype)), tf.int64)
    return tf.cast(tf.reduce_sum(ones, over(x, axis), keepdims), x.dtype)


def softmax(x: Tensor, *, axis: Axis) -> Tensor:
    axis = over(x, axis)
    # not tf.nn.softmax, which takes no tuple of axes and is off by 1.8 eps in float16
    powers = tf.exp(x - tf.reduce_max(x, axis, True))
    return powers / tf.reduce_sum(powers, axis, True)


def log_softmax(x: Tensor, *, axis: Axis) -> Tensor:
    axis = over(x, axis)
    shifted = x - tf.reduce_max(x, axis, True)
    return shifted - tf.math.log(tf.reduce_sum(tf.exp(shifted), axis, True))


def sum_to(x: Tensor, like: Tensor) -> Tensor:
    shape = tf.shape(like)
    # shapes may be open while tracing, so the axes are computed by an op
    axes, _ = tf.raw_ops.BroadcastGradientArgs(s0=shape, s1=tf.shape(x))
    return tf.reshape(tf.reduce_sum(x, axes, True), shape)


def broadcast_to(x: Tensor, like: Tensor) -> Tensor:
    return tf.broadcast_to(x, tf.shape(like))


def dim(x: Tensor, *, axis: int) -> Any:
    """Return a length: an int if known while tracing, else a tensor."""
    known = x.shape[axis] if x.shape.rank is not None else None
    return tf.shape(x)[axis] if known is None else known


def size(x: Tensor) -> Any:
    known = x.shape.num_elements()
    return tf.size(x) if known is None else known


def matmul(a: Tensor, b: Tensor) -> Tensor:
    result = tf.linalg.matmul(as_rows(a), as_columns(b))
    if b.shape.rank == 1:
        result = tf.squeeze(result, -1)
    if a.shape.rank == 1:
        result = tf.squeeze(result, -1 if b.shape.rank == 1 else -2)
    return result


def matmul_left(cotangent: Tensor, b: Tensor, like: Tensor) -> Tensor:
    product = as_matrix(accumulated(cotangent), like, b)
    result = tf.linalg.matmul(product, as_columns(accumulated(b)), transpose_b=True)
    result = result if like.shape.rank > 1 else result[..., 0, :]
    return tf.cast(sum_to(result, like), cotangent.dtype)


def matmul_right(a: Tensor, cotangent: Tensor, like: Tensor) -> Tensor:
    product = as_matrix(accumulated(cotangent), a, like)
    result = tf.linalg.matmul(as_rows(accumulated(a)), product, transpose_a=True)
    result = result if like.shape.rank > 1 else result[..., 0]
    return tf.cast(sum_to(result, like), cotangent.dtype)


def as_rows(x: Tensor) -> Tensor:
    return tf.expand_dims(x, 0) if x.shape.rank == 1 else x


def as_columns(x: Tensor) -> Tensor:
    return tf.expand_dims(x, 1) if x.shape.rank == 1 else x


def einsum(*arrays: Tensor, subscripts: str) -> Tensor:
    terms, _, result = subscripts.partition("->")
    given: Sequence[Tensor] = arrays
    if "..." in terms and "..." not in result:  # TensorFlow does not sum over these
        terms, given = spelled_out(terms, given)
    return tf.einsum(f"{terms}->{result}", *given)


def spelled_out(terms: str, arrays: Sequence[Tensor]) -> tuple[str, list[Tensor]]:
    """Return terms with letters instead of `...`, and arrays broadcast along these."""
    names, arrays = terms.split(","), list(arrays)
    counts = [
        x.shape.rank - len(n) + 3 if "..." in n else 0 for n, x in zip(names, arrays, strict=True)
    ]
    most = max(counts)
    letters = [letter for letter in string.ascii_letters if letter not in terms][:most]
    starts = [name.find(".") for name in names]
    rows = [i for i, name in enumerate(names) if "..." in name]
    static = {tuple(arrays[i].shape[starts[i] : starts[i] + counts[i]]) for i in rows}
    # one letter must have one length, which `...` need not
    if len(rows) > 1 and (len(static) > 1 or any(None in lengths for lengths in static)):
        parts = {i: tf.split(tf.shape(arrays[i]), [starts[i], counts[i], -1]) for i in rows}
        common = reduce(tf.broadcast_dynamic_shape, [own for _, own, _ in parts.values()])
        for i, (before, own, after) in parts.items():
            ones = tf.ones(most - counts[i], tf.int32)
            x = tf.reshape(arrays[i], tf.concat([before, ones, own, after], 0))
            arrays[i] = tf.broadcast_to(x, tf.concat([before, common, after], 0))
            counts[i] = most
    spelled = [
        n.replace("...", "".join(letters[most - k :])) for n, k in zip(names, counts, strict=True)
    ]
    return ",".join(spelled), arrays


def array(like: Tensor, *, dtype: Any, value: Any) -> Tensor:
    if not tf.executing_eagerly():
        return tf.constant(value.as_numpy(dtype.as_numpy_dtype), dtype)
    # eager code keeps one tensor for each device and dtype with the value
    place = "tensorflow", like.device, dtype
    tensor = value.native.get(place)
    if tensor is None:
        with tf.device(like.device):
            tensor = tf.constant(value.as_numpy(dtype.as_numpy_dtype), dtype)
        value.native[place] = tensor
    return tensor


OPS: dict[Op, Callable[..., Any]] = {
    **rows_of(vars()),
    ops.SUM: over_axes(tf.reduce_sum),
    ops.MEAN: over_axes(tf.reduce_mean),
    ops.MAX: over_axes(tf.reduce_max),
    ops.MIN: over_axes(tf.reduce_min),
    ops.ANY: over_axes(tf.reduce_any),
    ops.ALL: over_axes(tf.reduce_all),
    ops.PROD: over_axes(tf.reduce_prod),
    ops.LOGSUMEXP: over_axes(tf.reduce_logsumexp),
    ops.EXPAND_DIMS: tf.expand_dims,
    ops.FOLD_IN: random.fold_in,
    ops.UNIFORM_LIKE: random.uniform_like,
    ops.NORMAL_LIKE: random.normal_like,
    **ordering.OPS,
    **linalg.OPS,
    **shapes.OPS,
}
