"""TensorFlow's rows of the elementwise family: op to callable."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from multigrad.ir import ops
from multigrad.ir.ops import Op

Tensor = Any
ROOT_HALF = math.sqrt(0.5)
GELU_SCALE = math.sqrt(2 / math.pi)


def accumulated(x: Tensor) -> Tensor:
    """16-bit floats in float32, so that a reduction rounds once."""
    return tf.cast(x, tf.float32) if x.dtype.size == 2 else x


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
    ops.SIGMOID: tf.sigmoid,
    ops.RELU: tf.nn.relu,
    ops.RELU6: tf.nn.relu6,
    ops.SILU: silu,
    ops.SOFTPLUS: softplus,
    ops.HEAVISIDE: heaviside,
    ops.LEAKY_RELU: leaky_relu,
    ops.ELU: elu,
    ops.GELU: gelu,
}
