"""TensorFlow's kernels of the ops on arrays, of convolutions and of linear algebra.

Its CPU kernels of convolutions need channels last, have no dilation together with strides, no
groups in 3 dimensions, and few gradients. So gradients are convolutions too, of cotangents with
zeros between their elements.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from multigrad.core import ops
from multigrad.core.backend.rows import rows_of
from multigrad.core.ir.op import Op
from multigrad.engine.ops.linalg import PADE_REACHES
from multigrad.engine.ops.products import as_matrix

from ..core.kernels.elementwise import accumulated
from ..core.kernels.ops import sum_to
from . import shapes
from .shapes import length_of

Tensor: TypeAlias = Any
Ints = tuple[int, ...]


def windows(x: Tensor, *, sizes: Ints, strides: Ints, dilations: Ints) -> Tensor:
    first = x.shape.rank - len(sizes)
    for i, (size, stride, dilation) in enumerate(zip(sizes, strides, dilations, strict=True)):
        count = (length_of(x, first + i) - dilation * (size - 1) - 1) // stride + 1
        places = stride * tf.range(count)[:, None] + dilation * tf.range(size)
        parts = tf.gather(x, places, axis=first + i)
        x = shapes.moveaxis(parts, source=first + i + 1, destination=-1)
    return x


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
    rows = bordered(tf.expand_dims(x, axis + 1), axis + 1, 0, step - 1)
    shape = [length_of(x, i) for i in range(x.shape.rank)]
    flat = tf.reshape(rows, [*shape[:axis], length * step, *shape[axis + 1 :]])
    return cut(flat, axis, (length - 1) * step + 1)


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
        index = tuple(slice(None, None, step) for step in strides)
        return product(x, w, (1,) * len(strides), dilations, groups)[(slice(None), *index)]
    if groups > 1 and len(strides) == 3:
        # no 3-D CPU kernel has groups
        pairs = zip(tf.split(x, groups, -1), tf.split(w, groups, -1), strict=True)
        return tf.concat([product(a, b, strides, dilations, 1) for a, b in pairs], -1)
    return tf.nn.convolution(x, w, list(strides), "VALID", dilations=list(dilations))


def conv_left(
    cotangent: Tensor, w: Tensor, like: Tensor, *, strides: Ints, dilations: Ints, groups: int
) -> Tensor:
    """Return the gradient by x: a convolution of the spread cotangent with flipped kernels."""
    values, n = accumulated(cotangent), len(strides)
    for i in range(n):
        values = spread(values, 2 + i, strides[i])
        reach = dilations[i] * (length_of(w, 2 + i) - 1)
        # elements beyond the last window, which no output saw
        surplus = length_of(like, 2 + i) - length_of(values, 2 + i) - reach
        values = bordered(values, 2 + i, reach, reach + surplus)
    sizes, inner = [length_of(w, 2 + i) for i in range(n)], length_of(w, 1)
    # in and out channels change places within each group
    blocks = tf.reshape(accumulated(w), [groups, -1, inner, *sizes])
    blocks = tf.reverse(blocks, list(range(3, 3 + n)))
    blocks = tf.transpose(blocks, [*range(3, 3 + n), 1, 0, 2])
    kernels = tf.reshape(blocks, [*sizes, -1, groups * inner])
    result = product(channels_last(values), kernels, (1,) * n, dilations, groups)
    return tf.cast(channels_first(result), cotangent.dtype)


def conv_right(
    x: Tensor, cotangent: Tensor, like: Tensor, *, strides: Ints, dilations: Ints, groups: int
) -> Tensor:
    """Return the gradient by w: a convolution of x with the spread cotangent as its kernels."""
    images, values, n = accumulated(x), accumulated(cotangent), len(strides)
    for i in range(n):
        values = spread(values, 2 + i, strides[i])
        reach = dilations[i] * (length_of(like, 2 + i) - 1)
        images = cut(images, 2 + i, length_of(values, 2 + i) + reach)
    lengths, inner = [length_of(images, 2 + i) for i in range(n)], length_of(like, 1)
    # examples become channels, so that the products are summed over them
    images = tf.reshape(images, [-1, groups, inner, *lengths])
    images = tf.transpose(images, [2, *range(3, 3 + n), 1, 0])
    images = tf.reshape(images, [inner, *lengths, groups * length_of(x, 0)])
    kernels = tf.transpose(values, [*range(2, 2 + n), 0, 1])
    result = product(images, kernels, dilations, (1,) * n, groups)
    return tf.cast(tf.transpose(result, [n + 1, 0, *range(1, n + 1)]), cotangent.dtype)


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
    operands: Sequence[Tensor] = arrays
    if "..." in terms and "..." not in result:  # TensorFlow does not sum over these
        terms, operands = spelled_out(terms, operands)
    return tf.einsum(f"{terms}->{result}", *operands)


def spelled_out(terms: str, arrays: Sequence[Tensor]) -> tuple[str, list[Tensor]]:
    """Return terms with letters instead of `...`, and arrays broadcast along these."""
    names, arrays = terms.split(","), list(arrays)
    # the axes that each `...` stands for, and `rank`, the most of them
    counts = [
        x.shape.rank - len(n) + 3 if "..." in n else 0 for n, x in zip(names, arrays, strict=True)
    ]
    rank = max(counts)
    letters = [letter for letter in string.ascii_letters if letter not in terms][:rank]
    starts = [name.find(".") for name in names]
    rows = [i for i, name in enumerate(names) if "..." in name]
    spans = {tuple(arrays[i].shape[starts[i] : starts[i] + counts[i]]) for i in rows}
    # one letter must have one length, which `...` need not
    if len(rows) > 1 and (len(spans) > 1 or any(None in lengths for lengths in spans)):
        parts = {i: tf.split(tf.shape(arrays[i]), [starts[i], counts[i], -1]) for i in rows}
        common = reduce(tf.broadcast_dynamic_shape, [middle for _, middle, _ in parts.values()])
        for i, (before, middle, after) in parts.items():
            ones = tf.ones(rank - counts[i], tf.int32)
            x = tf.reshape(arrays[i], tf.concat([before, ones, middle, after], 0))
            arrays[i] = tf.broadcast_to(x, tf.concat([before, common, after], 0))
            counts[i] = rank
    full_terms = [
        n.replace("...", "".join(letters[rank - k :])) for n, k in zip(names, counts, strict=True)
    ]
    return ",".join(full_terms), arrays


# --- linear algebra -------------------------------------------------------------------------------
def cholesky(x: Tensor) -> Tensor:
    # Without a factor the kernel (2.21) leaves the upper half uninitialized.
    return tf.linalg.band_part(tf.linalg.cholesky(x), -1, 0)


def triangular_solve(a: Tensor, b: Tensor, *, lower: bool, transposed: bool, unit: bool) -> Tensor:
    if unit:
        # it has no option for a unit diagonal
        a = tf.linalg.set_diag(a, tf.ones_like(tf.linalg.diag_part(a)))
    return tf.linalg.triangular_solve(a, b, lower=lower, adjoint=transposed)


def solve(a: Tensor, b: Tensor) -> Tensor:
    if a.shape[:-2] != b.shape[:-2] or a.shape.rank is None:
        # tf.linalg.solve does not broadcast the axes of the batch
        batch = tf.broadcast_dynamic_shape(tf.shape(a)[:-2], tf.shape(b)[:-2])
        a, b = (tf.broadcast_to(m, tf.concat([batch, tf.shape(m)[-2:]], 0)) for m in (a, b))
    return tf.linalg.solve(a, b)


def pinv(x: Tensor, *, rtol: float, epsilons: float) -> Tensor:
    eps = float(np.finfo(x.dtype.as_numpy_dtype).eps)
    rows = tf.cast(tf.reduce_max(tf.shape(x)[-2:]), x.dtype)
    return tf.linalg.pinv(x, tf.maximum(rtol, epsilons * eps * rows))


def expm(x: Tensor) -> Tensor:
    # TensorFlow's (2.21) squares once too few: 4e6 eps at a norm of 9; one NaN matrix spoils all.
    norm = tf.reduce_max(tf.reduce_sum(tf.abs(x), -2, keepdims=True), -1, keepdims=True)
    is_finite = tf.math.is_finite(norm) & (norm >= 0)  # without rows the maximum is -inf
    ratio = tf.maximum(tf.where(is_finite, norm, 0.0) / PADE_REACHES, 1.0)
    squarings = tf.math.ceil(tf.math.log(ratio) / math.log(2.0))

    def square(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, tf.where(squarings > i, tf.matmul(y, y), y)

    y = tf.linalg.expm(tf.where(is_finite, x, tf.zeros_like(x)) * tf.pow(2.0, -squarings))
    i = tf.zeros((), x.dtype)
    y = tf.while_loop(lambda i, _: tf.reduce_any(squarings > i), square, (i, y))[1]
    return tf.where(is_finite, y, math.nan)


def logabsdet(x: Tensor) -> Tensor:
    return tf.linalg.slogdet(x).log_abs_determinant


def signdet(x: Tensor) -> Tensor:
    return tf.linalg.slogdet(x).sign


def factored(x: Tensor) -> tuple[Tensor, Tensor]:
    shape, static_shape = tf.shape(x), x.shape
    batch, count = shape[:-2], tf.minimum(shape[-2], shape[-1])
    # tf.linalg.lu (2.21) takes only square, invertible matrices, and not in XLA
    rows, columns = tf.range(shape[-2]), tf.range(shape[-1])

    def step(i: Tensor, x: Tensor, pivots: Tensor) -> tuple[Tensor, ...]:
        candidates = tf.where(rows >= i, tf.abs(x[..., i]), -1)
        best = tf.argmax(candidates, -1, output_type=tf.int32)
        x = exchanged(x, i, tf.reshape(best, tf.concat([batch, [1, 1]], 0)), rows[:, None])
        top, pivot = x[..., i, None, :], x[..., i, i, None]
        lower = x[..., i] / tf.where(pivot == 0, tf.ones_like(pivot), pivot)
        lower = tf.where(rows > i, lower, x[..., i])
        column = tf.expand_dims(lower, -1)
        remainder = x - column * top
        x = tf.where((rows[:, None] > i) & (columns > i), remainder, x)
        x = tf.where(columns == i, column, x)
        return i + 1, x, tf.where(tf.range(count) == i, tf.expand_dims(best, -1), pivots)

    pivots = tf.zeros(tf.concat([batch, [count]], 0), tf.int32)
    state = (0, x, pivots)
    _, packed, pivots = tf.while_loop(
        lambda i, *_: i < count,
        step,
        state,
        shape_invariants=(tf.TensorShape([]), static_shape, pivots.shape),
    )
    return packed, pivots


def exchanged(x: Tensor, i: Tensor, other: Tensor, rows: Tensor) -> Tensor:
    lower = tf.reduce_sum(tf.where(rows == other, x, tf.zeros_like(x)), -2, keepdims=True)
    return tf.where(rows == i, lower, tf.where(rows == other, x[..., i, None, :], x))


def lu(x: Tensor) -> Tensor:
    return factored(x)[0]


def lu_pivots(x: Tensor) -> Tensor:
    return tf.cast(factored(accumulated(x))[1], tf.int64)


def lu_permutation(indices: Tensor, like: Tensor) -> Tensor:
    rows = tf.range(tf.shape(like, tf.int64)[-2])
    shape = tf.concat([tf.shape(indices)[:-1], tf.shape(rows)], 0)

    def step(i: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        column = exchanged(places[..., None], i, indices[..., i, None, None], rows[:, None])
        return i + 1, column[..., 0]

    places = tf.broadcast_to(rows, shape)
    count = tf.shape(indices, tf.int64)[-1]
    return tf.while_loop(lambda i, _: i < count, step, (tf.constant(0, tf.int64), places))[1]


def svd(x: Tensor) -> Tensor:
    s, u, v = tf.linalg.svd(x)
    # an op has one result: the values are the first row above the vectors
    return tf.concat((s[..., None, :], u, v), -2)


def eigh(x: Tensor, *, lower: bool) -> Tensor:
    w, v = tf.linalg.eigh(x if lower else tf.linalg.matrix_transpose(x))
    return tf.concat((w[..., None, :], v), -2)


def eigvalsh(x: Tensor, *, lower: bool) -> Tensor:
    return tf.linalg.eigvalsh(x if lower else tf.linalg.matrix_transpose(x))


def svdvals(x: Tensor) -> Tensor:
    return tf.linalg.svd(x, compute_uv=False)


def qr(x: Tensor) -> Tensor:
    return tf.linalg.qr(x)[0]


def fft(x: Tensor, *, axes: tuple[int, ...], inverse: bool) -> Tensor:
    numbers = tf.complex(x[..., 0], x[..., 1])
    positions = range(x.shape.rank - 1)
    for axis in axes:  # tf.signal transforms only the last axis
        permutation = [*positions]
        permutation[axis + 1], permutation[-1] = permutation[-1], permutation[axis + 1]
        numbers = tf.transpose(numbers, permutation)
        if inverse:
            count = tf.cast(tf.shape(numbers)[-1], x.dtype)
            numbers = tf.signal.ifft(numbers) * tf.complex(count, tf.zeros_like(count))
        else:
            numbers = tf.signal.fft(numbers)
        numbers = tf.transpose(numbers, permutation)
    return tf.stack((tf.math.real(numbers), tf.math.imag(numbers)), -1)


OPS: dict[Op, Callable[..., Any]] = {
    **rows_of(vars()),
    ops.INV: tf.linalg.inv,
    ops.DET: tf.linalg.det,
    **shapes.OPS,
}
