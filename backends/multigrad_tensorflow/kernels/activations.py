"""TensorFlow's rows of the activations: op to callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from multigrad.backend import rows_of
from multigrad.graph import ops
from multigrad.graph.ir.op import Op

from .elementwise import accumulated, widened

Tensor = Any


def heaviside(x: Tensor) -> Tensor:
    return tf.cast(x > 0, x.dtype)


def leaky_relu(x: Tensor, *, slope: float) -> Tensor:
    # The kernel holds the slope in float32.
    return tf.where(x > 0, x, slope * x) if x.dtype == tf.float64 else tf.nn.leaky_relu(x, slope)


def elu(x: Tensor, *, alpha: float) -> Tensor:
    if alpha == 1.0:
        return tf.nn.elu(x)
    # expm1 of what is not chosen must not overflow: its gradient would be 0 * inf.
    return tf.where(x > 0, x, alpha * tf.math.expm1(tf.minimum(x, 0.0)))


def softplus(x: Tensor) -> Tensor:
    return tf.cast(tf.nn.softplus(accumulated(x)), x.dtype)


OPS: dict[Op, Callable[..., Any]] = {
    **rows_of(vars()),
    ops.LOG_SIGMOID: widened(tf.math.log_sigmoid),
    ops.SILU: tf.nn.silu,
    ops.SIGMOID: tf.sigmoid,
    ops.RELU: tf.nn.relu,
    ops.RELU6: tf.nn.relu6,
}
NAMES = """
    sigmoid: sigmoid raw.Sigmoid; log_sigmoid: math.log_sigmoid; softplus: nn.softplus raw.Softplus;
    relu: nn.relu raw.Relu; relu6: nn.relu6 raw.Relu6; selu: nn.selu raw.Selu;
    soft_sign: nn.softsign raw.Softsign
"""
