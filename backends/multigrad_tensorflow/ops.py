"""TensorFlow's rows: op to callable. An op with a symbol that is left out is written infix."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from multigrad.ir import ops
from multigrad.ir.ops import Op

from . import random

Tensor = Any
Axis = int | tuple[int, ...] | None
ROOT_HALF = math.sqrt(0.5)
GELU_SCALE = math.sqrt(2 / math.pi)


def equal(a: Tensor, b: Tensor) -> Tensor:
    return tf.equal(a, b)


def not_equal(a: Tensor, b: Tensor) -> Tensor:
    return tf.not_equal(a, b)


def maximum(a: Any, b: Any) -> Tensor:
    return tf.maximum(a, b)


def minimum(a: Any, b: Any) -> Tensor:
    return tf.minimum(a, b)


def clip(x: Tensor, min: Any, max: Any) -> Tensor:
    # tf.clip_by_value checks that min <= max; ours gives max there
    return tf.minimum(tf.maximum(x, min), max)


def where(condition: Tensor, a: Any, b: Any) -> Tensor:
    return tf.where(condition, a, b)


def cast(x: Tensor, *, dtype: Any) -> Tensor:
    return tf.cast(x, dtype)


def full_like(x: Tensor, value: Any, *, dtype: Any = None) -> Tensor:
    filled = tf.cast(value, x.dtype if dtype is None else dtype)
    return tf.broadcast_to(filled, tf.shape(x))


def accumulated(x: Tensor) -> Tensor:
    """16-bit floats in float32, so that a reduction rounds once."""
    return tf.cast(x, tf.float32) if x.dtype.size == 2 else x


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


def heaviside(x: Tensor) -> Tensor:
    return tf.cast(x > 0, x.dtype)


def erf(x: Tensor) -> Tensor:
    # tensorflow 2.21: the float64 kernel gives NaN where the square of x overflows; erf(6) rounds to 1.
    return tf.math.erf(clip(x, -6.0, 6.0) if x.dtype == tf.float64 else x)


def leaky_relu(x: Tensor, *, slope: float) -> Tensor:
    # The kernel holds the slope in float32.
    return tf.where(x > 0, x, slope * x) if x.dtype == tf.float64 else tf.nn.leaky_relu(x, slope)


def elu(x: Tensor, *, alpha: float) -> Tensor:
    if alpha == 1.0:
        return tf.nn.elu(x)
    # expm1 of what is not chosen must not overflow: its gradient would be 0 * inf.
    return tf.where(x > 0, x, alpha * tf.math.expm1(tf.minimum(x, 0.0)))


def gelu(x: Tensor, *, approximate: bool) -> Tensor:
    # As tf.nn.gelu, whose constants are float32 ones also in float64.
    wide = accumulated(x)
    if approximate:
        inner = GELU_SCALE * (wide + 0.044715 * wide * wide * wide)
        return tf.cast(0.5 * wide * (1.0 + tf.tanh(inner)), x.dtype)
    return tf.cast(0.5 * wide * tf.math.erfc(-ROOT_HALF * wide), x.dtype)


def softplus(x: Tensor) -> Tensor:
    return tf.cast(tf.nn.softplus(accumulated(x)), x.dtype)


def silu(x: Tensor) -> Tensor:
    return tf.nn.silu(x)


def trunc(x: Tensor) -> Tensor:
    return tf.where(x < 0, tf.math.ceil(x), tf.floor(x))


def fold_in(key: Any, *, n: int) -> Any:
    return random.fold_in(key, n)


OPS: dict[Op, Callable[..., Any]] = {
    ops.EQ: equal,
    ops.NE: not_equal,
    ops.POW: tf.pow,
    ops.MAXIMUM: maximum,
    ops.MINIMUM: minimum,
    ops.ABS: tf.abs,
    ops.SIGN: tf.sign,
    ops.SQUARE: tf.square,
    ops.SQRT: tf.sqrt,
    ops.RSQRT: tf.math.rsqrt,
    ops.RECIPROCAL: tf.math.reciprocal,
    ops.FLOOR: tf.floor,
    ops.CEIL: tf.math.ceil,
    ops.ROUND: tf.round,
    ops.TRUNC: trunc,
    ops.EXP: tf.exp,
    ops.EXPM1: tf.math.expm1,
    ops.LOG: tf.math.log,
    ops.LOG1P: tf.math.log1p,
    ops.SIN: tf.sin,
    ops.COS: tf.cos,
    ops.ATAN: tf.atan,
    ops.TANH: tf.tanh,
    ops.ERF: erf,
    ops.ISNAN: tf.math.is_nan,
    ops.ISINF: tf.math.is_inf,
    ops.ISFINITE: tf.math.is_finite,
    ops.CLIP: clip,
    ops.WHERE: where,
    ops.CAST: cast,
    ops.FULL_LIKE: full_like,
    ops.STOP_GRADIENT: tf.stop_gradient,
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
    ops.SIGMOID: tf.sigmoid,
    ops.RELU: tf.nn.relu,
    ops.RELU6: tf.nn.relu6,
    ops.SILU: silu,
    ops.SOFTPLUS: softplus,
    ops.HEAVISIDE: heaviside,
    ops.LEAKY_RELU: leaky_relu,
    ops.ELU: elu,
    ops.GELU: gelu,
    ops.FOLD_IN: fold_in,
    ops.UNIFORM_LIKE: random.uniform_like,
    ops.NORMAL_LIKE: random.normal_like,
}

UNSUPPORTED: dict[Op, str] = {}
