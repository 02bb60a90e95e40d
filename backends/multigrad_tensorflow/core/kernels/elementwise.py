"""TensorFlow's kernels of elementwise ops and activations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from multigrad.core import ops
from multigrad.core.backend.rows import rows_of
from multigrad.core.ir.op import Op
from multigrad.core.ops.selection import LARGEST

Tensor: TypeAlias = tf.Tensor


def accumulated(x: Tensor) -> Tensor:
    """Return 16-bit floats in float32, so that a reduction rounds once."""
    return tf.cast(x, tf.float32) if x.dtype.size == 2 else x


def as_tensor(value: Any, dtype: Any) -> Tensor:
    # `tf.cast` would round a Python number to float32 first
    return tf.cast(value, dtype) if tf.is_tensor(value) else tf.constant(value, dtype)


def is_of(value: Any, dtype: Any) -> bool:
    return tf.is_tensor(value) and value.dtype == dtype


def widened(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function on tensors that computes 16-bit floats in float32 and rounds once."""

    @functools.wraps(function)
    def call(*values: Any, **attrs: Any) -> Tensor:
        dtype = next(value.dtype for value in values if tf.is_tensor(value))
        tensors = [v if is_of(v, dtype) else as_tensor(v, dtype) for v in values]
        if dtype.size != 2:
            return function(*tensors, **attrs)
        return tf.cast(function(*(tf.cast(x, tf.float32) for x in tensors), **attrs), dtype)

    return call


def fitted(a: Any, b: Any) -> Any:
    # a graph would take a leading number as int32 or float32
    return tf.constant(a, b.dtype) if isinstance(a, bool | int | float) and tf.is_tensor(b) else a


def equal(a: Tensor, b: Tensor) -> Tensor:
    return tf.equal(fitted(a, b), b)


def not_equal(a: Tensor, b: Tensor) -> Tensor:
    return tf.not_equal(fitted(a, b), b)


def power(a: Any, b: Any) -> Tensor:
    result = tf.pow(fitted(a, b), b)
    if isinstance(b, int | float) and b == 2:
        return result
    # XLA rewrites log(a ** b) as b log |a|, a number where it must be NaN, unless an op is between.
    return tf.where(tf.math.is_nan(result), result + result, result)


def maximum(a: Any, b: Any) -> Tensor:
    return tf.maximum(fitted(a, b), b)


def minimum(a: Any, b: Any) -> Tensor:
    return tf.minimum(fitted(a, b), b)


def clip(x: Any, min: Any, max: Any) -> Tensor:
    if not tf.is_tensor(x) and not tf.is_tensor(min):
        x = tf.constant(x, max.dtype)
    # tf.clip_by_value checks that min <= max; ours gives max there
    return tf.minimum(tf.maximum(fitted(x, min), min), max)


def where(condition: Tensor, a: Any, b: Any) -> Tensor:
    return tf.where(condition, fitted(a, b), b)


def cast(x: Tensor, *, dtype: Any) -> Tensor:
    if x.dtype == tf.float64 and tf.as_dtype(dtype).name.startswith("float8"):
        x = tf.cast(x, tf.float32)  # rounded twice, as in all backends
    if not (x.dtype.is_floating and tf.as_dtype(dtype).is_integer):
        return tf.cast(x, dtype)
    # tf.cast leaves values out of range to the processor.
    values = tf.cast(x, tf.float64)
    numbers = tf.where(tf.math.is_nan(values), tf.zeros_like(values), values)
    kind = tf.as_dtype(dtype)
    low, high = (-LARGEST, LARGEST) if kind == tf.int64 else (float(kind.min), float(kind.max))
    return tf.cast(clip(numbers, low, high), dtype)


def full_like(x: Tensor, value: Any, *, dtype: Any = None) -> Tensor:
    kind = tf.as_dtype(x.dtype if dtype is None else dtype)
    if not tf.is_tensor(value):
        with np.errstate(over="ignore"):  # a number too large for the dtype is inf
            value = kind.as_numpy_dtype(value)
    return tf.broadcast_to(as_tensor(value, kind), tf.shape(x))


def erf(x: Tensor) -> Tensor:
    # tensorflow 2.21: the float64 kernel gives NaN where the square of x overflows; erf(6) rounds
    # to 1.
    return tf.math.erf(clip(x, -6.0, 6.0) if x.dtype == tf.float64 else x)


def remainder(a: Tensor, b: Tensor) -> Tensor:
    return of_integers(tf.math.floormod, a, b) if b.dtype.is_integer else tf.math.floormod(a, b)


def of_integers(function: Callable[..., Tensor], a: Tensor, b: Tensor) -> Tensor:
    # TensorFlow raises for integers divided by 0; every backend gives 0
    is_zero, zero = b == 0, tf.zeros([], b.dtype)
    return tf.where(is_zero, zero, function(a, tf.where(is_zero, tf.ones([], b.dtype), b)))


def floor_divide(a: Tensor, b: Tensor) -> Tensor:
    if b.dtype.is_integer:
        return of_integers(tf.math.floordiv, a, b)
    # as in Python: a / b may round up to the next integer, a - fmod(a, b) does not
    residue = tf.raw_ops.Mod(x=a, y=b)
    ratio = (a - residue) / b
    ratio = tf.where((residue != 0) & ((residue < 0) != (b < 0)), ratio - 1.0, ratio)
    quotient = tf.floor(ratio)
    # the ratio is a whole number up to rounding, which may lie below it
    quotient = tf.where(ratio - quotient > 0.5, quotient + 1.0, quotient)
    return tf.where(b == 0, a / b, quotient)


def heaviside(x: Tensor) -> Tensor:
    return tf.cast(x > 0, x.dtype)


def leaky_relu(x: Tensor, *, slope: float) -> Tensor:
    # the kernel has its slope in float32
    return tf.where(x > 0, x, slope * x) if x.dtype == tf.float64 else tf.nn.leaky_relu(x, slope)


def elu(x: Tensor, *, alpha: float) -> Tensor:
    if alpha == 1.0:
        return tf.nn.elu(x)
    # expm1 of what is not chosen must not overflow: its gradient would be 0 * inf.
    return tf.where(x > 0, x, alpha * tf.math.expm1(tf.minimum(x, 0.0)))


# The functions of `tf` that have the names of their ops.
SAME = """
    abs atan cos cosh exp floor round sigmoid sign sin sinh sqrt square stop_gradient tanh
"""
OPS: dict[Op, Callable[..., Any]] = {
    **rows_of(vars(), ops.CORE_OPS),
    **rows_of({name: getattr(tf, name) for name in SAME.split()}, ops.CORE_OPS),
    ops.EQ: equal,
    ops.NE: not_equal,
    ops.POW: power,
    ops.RSQRT: tf.math.rsqrt,
    ops.RECIPROCAL: tf.math.reciprocal,
    ops.CEIL: tf.math.ceil,
    ops.EXPM1: tf.math.expm1,
    ops.LOG: tf.math.log,
    ops.LOG1P: tf.math.log1p,
    ops.ERFC: tf.math.erfc,
    ops.ISNAN: tf.math.is_nan,
    ops.ISINF: tf.math.is_inf,
    ops.ISFINITE: tf.math.is_finite,
    ops.SILU: tf.nn.silu,
    ops.SOFTPLUS: tf.nn.softplus,
    ops.RELU: tf.nn.relu,
    ops.RELU6: tf.nn.relu6,
}
