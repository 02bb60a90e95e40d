"""TensorFlow's rows of the array family: op to callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from multigrad.ir import ops
from multigrad.ir.ops import Op

from . import random
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


def norm(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    wide = accumulated(x)
    return tf.cast(tf.sqrt(tf.reduce_sum(wide * wide, over(x, axis), keepdims)), x.dtype)


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


def expand_dims(x: Tensor, *, axis: int) -> Tensor:
    return tf.expand_dims(x, axis)


def dim(x: Tensor, *, axis: int) -> Any:
    """A Python int where the length is known while tracing, else a tensor."""
    known = x.shape[axis] if x.shape.rank is not None else None
    return tf.shape(x)[axis] if known is None else known


def size(x: Tensor) -> Any:
    """A Python int where the size is known while tracing, else a tensor."""
    known = x.shape.num_elements()
    return tf.size(x) if known is None else known


def fold_in(key: Any, *, n: int) -> Any:
    return random.fold_in(key, n)


OPS: dict[Op, Callable[..., Any]] = {
    ops.SUM: sum_,
    ops.MEAN: mean,
    ops.MAX: max_,
    ops.MIN: min_,
    ops.ANY: any_,
    ops.ALL: all_,
    ops.NORM: norm,
    ops.VAR: var,
    ops.STD: std,
    ops.SUM_TO: sum_to,
    ops.BROADCAST_TO: broadcast_to,
    ops.EXPAND_DIMS: expand_dims,
    ops.DIM: dim,
    ops.SIZE: size,
    ops.FOLD_IN: fold_in,
    ops.UNIFORM_LIKE: random.uniform_like,
    ops.NORMAL_LIKE: random.normal_like,
}
