"""TensorFlow's rows of the family of convolutions, each function named as its op.

Its CPU kernels have channels last, no dilation beside strides, no groups in 3 dimensions, and few
of the gradients: so these are convolutions, too, of cotangents with zeros between their elements.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from multigrad.backend import rows_of

from .elementwise import accumulated
from .ordering import length_of

Tensor = Any
Ints = tuple[int, ...]


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
    """Put step - 1 zeros between the elements along an axis."""
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
    """Channels at the end; kernels to (*sizes, channels, out channels)."""
    axes = range(2, x.shape.rank)
    return tf.transpose(x, [*axes, 1, 0] if kernels else [0, *axes, 1])


def channels_first(x: Tensor) -> Tensor:
    last = x.shape.rank - 1
    return tf.transpose(x, [0, last, *range(1, last)])


def product(x: Tensor, w: Tensor, strides: Ints, dilations: Ints, groups: int) -> Tensor:
    if max(strides) > 1 and max(dilations) > 1:
        every = tuple(slice(None, None, step) for step in strides)
        return product(x, w, (1,) * len(strides), dilations, groups)[(slice(None), *every)]
    if groups > 1 and len(strides) == 3:
        pairs = zip(tf.split(x, groups, -1), tf.split(w, groups, -1), strict=True)
        return tf.concat([product(a, b, strides, dilations, 1) for a, b in pairs], -1)
    return tf.nn.convolution(x, w, list(strides), "VALID", dilations=list(dilations))


def conv_left(
    cotangent: Tensor, w: Tensor, like: Tensor, *, strides: Ints, dilations: Ints, groups: int
) -> Tensor:
    """What each element of x met: the kernels flipped over the cotangent, spread by the strides."""
    given, n = accumulated(cotangent), len(strides)
    for i in range(n):
        given = spread(given, 2 + i, strides[i])
        reach = dilations[i] * (length_of(w, 2 + i) - 1)
        rest = length_of(like, 2 + i) - length_of(given, 2 + i) - reach
        given = bordered(given, 2 + i, reach, reach + rest)
    sizes, inner = [length_of(w, 2 + i) for i in range(n)], length_of(w, 1)
    split = tf.reshape(accumulated(w), [groups, -1, inner, *sizes])
    split = tf.reverse(split, list(range(3, 3 + n)))
    split = tf.transpose(split, [*range(3, 3 + n), 1, 0, 2])
    kernels = tf.reshape(split, [*sizes, -1, groups * inner])
    result = product(channels_last(given), kernels, (1,) * n, dilations, groups)
    return tf.cast(channels_first(result), cotangent.dtype)


def conv_right(
    x: Tensor, cotangent: Tensor, like: Tensor, *, strides: Ints, dilations: Ints, groups: int
) -> Tensor:
    """The cotangent, spread by the strides, as kernels over x; examples stand for channels."""
    seen, given, n = accumulated(x), accumulated(cotangent), len(strides)
    for i in range(n):
        given = spread(given, 2 + i, strides[i])
        reach = dilations[i] * (length_of(like, 2 + i) - 1)
        seen = cut(seen, 2 + i, length_of(given, 2 + i) + reach)
    lengths, inner = [length_of(seen, 2 + i) for i in range(n)], length_of(like, 1)
    seen = tf.reshape(seen, [-1, groups, inner, *lengths])
    seen = tf.transpose(seen, [2, *range(3, 3 + n), 1, 0])
    seen = tf.reshape(seen, [inner, *lengths, groups * length_of(x, 0)])
    kernels = tf.transpose(given, [*range(2, 2 + n), 0, 1])
    result = product(seen, kernels, dilations, (1,) * n, groups)
    return tf.cast(tf.transpose(result, [n + 1, 0, *range(1, n + 1)]), cotangent.dtype)


OPS = rows_of(vars())
