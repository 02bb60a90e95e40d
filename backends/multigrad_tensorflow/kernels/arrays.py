"""TensorFlow's rows of the array family: op to callable."""

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

from . import convolutions, indices, linalg, ordering, random, shapes
from .elementwise import accumulated

Tensor = Any
Axis = int | tuple[int, ...] | None


def over(x: Tensor, axis: Axis) -> Axis:
    """The axes to reduce over: none of a scalar, whichever are asked for."""
    return () if x.shape.rank == 0 else axis


def over_axes(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A reduction of TensorFlow as a row."""

    def reduce(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
        return function(x, over(x, axis), keepdims)

    return reduce


def count_nonzero(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    ones = tf.cast(tf.not_equal(x, tf.zeros([], x.dtype)), tf.int64)
    return tf.cast(tf.reduce_sum(ones, over(x, axis), keepdims), x.dtype)


def softmax(x: Tensor, *, axis: Axis) -> Tensor:
    axis = over(x, axis)
    powers = tf.exp(x - tf.reduce_max(x, axis, True))
    return powers / tf.reduce_sum(powers, axis, True)


def log_softmax(x: Tensor, *, axis: Axis) -> Tensor:
    axis = over(x, axis)
    shifted = x - tf.reduce_max(x, axis, True)
    return shifted - tf.math.log(tf.reduce_sum(tf.exp(shifted), axis, True))


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
    if "..." in terms and "..." not in result:  # which TensorFlow does not sum away
        terms, given = spelled_out(terms, given)
    return tf.einsum(f"{terms}->{result}", *given)


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
    **convolutions.OPS,
    **indices.OPS,
    **linalg.OPS,
    **shapes.OPS,
}
