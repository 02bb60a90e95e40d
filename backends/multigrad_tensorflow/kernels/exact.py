"""TensorFlow's kernels of exact ops: arithmetic that neither its graphs nor XLA rewrite.

Graphs (tensorflow 2.21) multiply by the reciprocal of a constant or a root, and regroup constants;
XLA also contracts a product and a sum, and leaves out roundings to bfloat16. None does this through
a choice. Eigen's own reciprocals, reciprocal roots and powers are rounded twice.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from multigrad.backend import rows_of
from multigrad.graph.passes.decisions import NUMBER_OVER, as_exact

from . import elementwise

Tensor = Any


def apart(x: Tensor) -> Tensor:
    """Return x, which compiled code computes as it is written, rounded."""
    if tf.executing_eagerly():
        return x
    return tf.where(tf.math.is_nan(x), tf.constant(math.nan, x.dtype), x)


def add(a: Any, b: Any) -> Tensor:
    return apart(a + b)


def sub(a: Any, b: Any) -> Tensor:
    return apart(a - b)


def mul(a: Any, b: Any) -> Tensor:
    return apart(a * b)


def div(a: Tensor, b: Any) -> Tensor:
    if tf.executing_eagerly():
        return a / b
    # so that no divisor is known to be the same for all
    return apart(a / tf.where(tf.math.is_nan(a), a, b))


def div_of_number(a: Any, b: Tensor) -> Tensor:
    if tf.executing_eagerly():
        return a / b
    return apart(tf.where(tf.math.is_nan(b), b, elementwise.fitted(a, b)) / b)


def square(x: Tensor) -> Tensor:
    return apart(x * x)


def sqrt(x: Tensor) -> Tensor:
    return apart(tf.sqrt(x))


def rsqrt(x: Tensor) -> Tensor:
    return div_of_number(1.0, sqrt(x))


def reciprocal(x: Tensor) -> Tensor:
    return div_of_number(1.0, x)


def pow_(a: Any, b: Any) -> Tensor:
    return square(a) if isinstance(b, int | float) and b == 2 else apart(elementwise.power(a, b))


def cast(x: Tensor, *, dtype: Any) -> Tensor:
    return apart(elementwise.cast(x, dtype=dtype))


OPS = {**as_exact(rows_of(vars())), NUMBER_OVER: div_of_number}
