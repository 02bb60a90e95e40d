"""TensorFlow's kernels of exact ops: arithmetic that neither its graphs nor XLA rewrite.

Graphs (tensorflow 2.21) multiply by the reciprocal of a constant or a root, and regroup constants;
XLA also contracts a product and a sum, and leaves out roundings to bfloat16. None does this through
a choice. Eigen's own reciprocals, reciprocal roots and powers are rounded twice.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import tensorflow as tf

from multigrad.core import ops
from multigrad.core.backend.rows import rows_of
from multigrad.core.passes.decisions import APART, NUMBER_OVER, as_exact

from . import elementwise

Tensor: TypeAlias = tf.Tensor


def apart(x: Tensor) -> Tensor:
    if tf.executing_eagerly():
        return x
    return tf.where(tf.math.is_nan(x), tf.constant(math.nan, x.dtype), x)


def div(a: Tensor, b: Any) -> Tensor:
    # no divisor is known to be the same for all
    return a / (b if tf.executing_eagerly() else tf.where(tf.math.is_nan(a), a, b))


def div_of_number(a: Any, b: Tensor) -> Tensor:
    if not tf.executing_eagerly():  # nor is this one over b
        a = tf.where(tf.math.is_nan(b), b, elementwise.fitted(a, b))
    return a / b


def rsqrt(x: Tensor) -> Tensor:
    return div_of_number(1.0, apart(tf.sqrt(x)))


def reciprocal(x: Tensor) -> Tensor:
    return div_of_number(1.0, x)


def pow_(a: Any, b: Any) -> Tensor:
    return a * a if isinstance(b, int | float) and b == 2 else elementwise.power(a, b)


OPS = {**as_exact(rows_of(vars(), ops.CORE_OPS)), NUMBER_OVER: div_of_number, APART: apart}
