"""TensorFlow's rows of the array family: op to callable."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import tensorflow as tf

from multigrad.backend import rows_of
from multigrad.graph import ops
from multigrad.graph.ir.op import Op

from . import convolutions, indices, linalg, ordering, random, shapes
from .elementwise import accumulated

Tensor = Any
Axis = int | tuple[int, ...] | None


def over(x: Tensor, axis: Axis) -> Axis:
    """The axes to reduce over: none of a scalar, whichever are asked for."""
    return () if x.shape.rank == 0 else axis


def sum_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return tf.cast(tf.reduce_sum(accumulated(x), over(x, axis), keepdims), x.dtype)


def mean(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return tf.cast(tf.reduce_mean(accumulated(x), over(x, axis), keepdims), x.dtype)


def max_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return tf.reduce_max(x, over(x, axis), keepdims)


def min_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return tf.reduce_min(x, over(x, axis), keepdims)


def any_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return tf.reduce_any(x, over(x, axis), keepdims)


def all_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return tf.reduce_all(x, over(x, axis), keepdims)


def prod(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return tf.cast(tf.reduce_prod(accumulated(x), over(x, axis), keepdims), x.dtype)


def count_nonzero(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    ones = tf.cast(tf.not_equal(x, tf.zeros([], x.dtype)), tf.int64)
    return tf.cast(tf.reduce_sum(ones, over(x, axis), keepdims), x.dtype)


def norm(x: Tensor, *, axis: Axis, keepdims: bool, ord: float) -> Tensor:
    wide, axis = accumulated(x), over(x, axis)
    if ord == math.inf:
        largest = tf.reduce_max(tf.abs(wide), axis, keepdims)
        result = tf.maximum(largest, tf.zeros([], wide.dtype))  # -inf where there is nothing
    elif ord == 1:
        result = tf.reduce_sum(tf.abs(wide), axis, keepdims)
    elif ord == 2:
        result = tf.sqrt(tf.reduce_sum(wide * wide, axis, keepdims))
    else:
        result = tf.reduce_sum(tf.abs(wide) ** ord, axis, keepdims) ** (1 / ord)
    return tf.cast(result, x.dtype)


def logsumexp(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return tf.cast(tf.reduce_logsumexp(accumulated(x), over(x, axis), keepdims), x.dtype)


def softmax(x: Tensor, *, axis: Axis) -> Tensor:
    wide, axis = accumulated(x), over(x, axis)
    powers = tf.exp(wide - tf.reduce_max(wide, axis, True))
    return tf.cast(powers / tf.reduce_sum(powers, axis, True), x.dtype)


def log_softmax(x: Tensor, *, axis: Axis) -> Tensor:
    wide, axis = accumulated(x), over(x, axis)
    shifted = wide - tf.reduce_max(wide, axis, True)
    total = tf.math.log(tf.reduce_sum(tf.exp(shifted), axis, True))
    return tf.cast(shifted - total, x.dtype)


def glu(x: Tensor, *, axis: int) -> Tensor:
    first, second = (shapes.half(accumulated(x), axis=axis, position=i) for i in (0, 1))
    return tf.cast(first * tf.sigmoid(second), x.dtype)


def var(x: Tensor, *, axis: Axis, keepdims: bool, correction: float) -> Tensor:
    wide = accumulated(x)
    axis = over(x, axis)
    total = tf.reduce_sum(tf.square(wide - tf.reduce_mean(wide, axis, True)), axis, keepdims)
    return tf.cast(total / tf.maximum(_count(wide, axis) - correction, 0), x.dtype)


def std(x: Tensor, *, axis: Axis, keepdims: bool, correction: float) -> Tensor:
    wide = var(accumulated(x), axis=axis, keepdims=keepdims, correction=correction)
    return tf.cast(tf.sqrt(wide), x.dtype)


def _count(x: Tensor, axis: Axis) -> Tensor:
    """How many elements each result of a reduction combines, as a float."""
    shape = tf.shape(x)
    lengths = shape if axis in (None, ()) else tf.gather(shape, _positive(x, axis))
    return tf.cast(tf.reduce_prod(lengths), x.dtype)


def _positive(x: Tensor, axis: Any) -> Any:
    axes = axis if isinstance(axis, tuple) else (axis,)
    return [i % tf.rank(x) for i in axes]


def sum_to(x: Tensor, like: Tensor) -> Tensor:
    shape = tf.shape(like)
    axes, _ = tf.raw_ops.BroadcastGradientArgs(s0=shape, s1=tf.shape(x))
    return tf.reshape(tf.reduce_sum(x, axes, True), shape)


def broadcast_to(x: Tensor, like: Tensor) -> Tensor:
    return tf.broadcast_to(x, tf.shape(like))


def dim(x: Tensor, *, axis: int) -> Any:
    """A Python int where the length is known while tracing, else a tensor."""
    known = x.shape[axis] if x.shape.rank is not None else None
    return tf.shape(x)[axis] if known is None else known


def size(x: Tensor) -> Any:
    """A Python int where the size is known while tracing, else a tensor."""
    known = x.shape.num_elements()
    return tf.size(x) if known is None else known


def uniform_wide(key: Any, x: Tensor) -> Tensor:
    """Uniforms in float32 for 16-bit dtypes, so that a function of them rounds once."""
    return random.uniform_like(key, accumulated(x))


def bernoulli_like(key: Any, x: Tensor, p: Any) -> Tensor:
    p = tf.constant(p, x.dtype) if isinstance(p, float | int) else tf.cast(p, x.dtype)
    return tf.cast(random.uniform_like(key, x) < p, x.dtype)


def rademacher_like(key: Any, x: Tensor) -> Tensor:
    half = tf.constant(0.5, x.dtype)
    return 2 * tf.cast(random.uniform_like(key, x) < half, x.dtype) - 1


def exponential_like(key: Any, x: Tensor) -> Tensor:
    return tf.cast(-tf.math.log1p(-uniform_wide(key, x)), x.dtype)


def gumbel_like(key: Any, x: Tensor) -> Tensor:
    uniform = uniform_wide(key, x)
    tiny = np.finfo(uniform.dtype.as_numpy_dtype).tiny
    positive = tf.maximum(uniform, tf.constant(tiny, uniform.dtype))
    return tf.cast(-tf.math.log(-tf.math.log(positive)), x.dtype)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    rows, columns = as_rows(accumulated(a)), as_columns(accumulated(b))
    result = tf.linalg.matmul(rows, columns)
    if b.shape.rank == 1:
        result = tf.squeeze(result, -1)
    if a.shape.rank == 1:
        result = tf.squeeze(result, -1 if b.shape.rank == 1 else -2)
    return tf.cast(result, a.dtype)


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


def as_matrix(product: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Give the product of a and b back the axes that a vector among them took away."""
    product = tf.expand_dims(product, -1) if b.shape.rank == 1 else product
    return tf.expand_dims(product, -2) if a.shape.rank == 1 else product


def einsum(*arrays: Tensor, subscripts: str) -> Tensor:
    terms, _, result = subscripts.partition("->")
    given = [accumulated(x) for x in arrays]
    if "..." in terms and "..." not in result:  # which TensorFlow does not sum away
        terms, given = spelled_out(terms, given)
    return tf.cast(tf.einsum(f"{terms}->{result}", *given), arrays[0].dtype)


def spelled_out(terms: str, arrays: Sequence[Tensor]) -> tuple[str, list[Tensor]]:
    """Return terms with letters in place of `...`, and arrays that are broadcast along these."""
    names, arrays = terms.split(","), list(arrays)
    counts = [
        x.shape.rank - len(n) + 3 if "..." in n else 0 for n, x in zip(names, arrays, strict=True)
    ]
    most = max(counts)
    letters = [letter for letter in string.ascii_letters if letter not in terms][:most]
    starts = [name.find(".") for name in names]
    rows = [i for i, name in enumerate(names) if "..." in name]
    static = {tuple(arrays[i].shape[starts[i] : starts[i] + counts[i]]) for i in rows}
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
    """A constant of the graph; eagerly, one tensor for each device and dtype."""
    if not tf.executing_eagerly():
        return tf.constant(value.as_numpy(dtype.as_numpy_dtype), dtype)
    place = "tensorflow", like.device, dtype
    tensor = value.native.get(place)
    if tensor is None:
        with tf.device(like.device):
            tensor = tf.constant(value.as_numpy(dtype.as_numpy_dtype), dtype)
        value.native[place] = tensor
    return tensor


OPS: dict[Op, Callable[..., Any]] = {
    **rows_of(vars()),
    ops.EXPAND_DIMS: tf.expand_dims,
    ops.FOLD_IN: random.fold_in,
    ops.UNIFORM_LIKE: random.uniform_like,
    ops.NORMAL_LIKE: random.normal_like,
    **ordering.OPS,
    **convolutions.OPS,
    **indices.OPS,
    **linalg.OPS,
    **shapes.OPS,
}
