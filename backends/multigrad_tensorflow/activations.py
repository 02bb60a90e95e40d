"""TensorFlow's rows of the activations: op to callable."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from multigrad import ops
from multigrad.backend import rows_of
from multigrad.ir.op import Op
from multigrad.ops.activations import SELU_ALPHA, SELU_SCALE

from .elementwise import ROOT_HALF, accumulated, clip, copysign, hypot, widened

Tensor = Any
GELU_SCALE = math.sqrt(2 / math.pi)


@widened
def log_sigmoid(x: Tensor) -> Tensor:
    return tf.math.log_sigmoid(x)


@widened
def logit(x: Tensor) -> Tensor:
    return tf.math.log(x) - tf.math.log1p(-x)


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


@widened
def celu(x: Tensor, *, alpha: float) -> Tensor:
    return tf.where(x > 0, x, alpha * tf.math.expm1(tf.minimum(x, 0.0) / alpha))


@widened
def selu(x: Tensor) -> Tensor:
    # tf.nn.selu computes exp(x) - 1, and nothing is left of small x.
    below = SELU_SCALE * SELU_ALPHA * tf.math.expm1(tf.minimum(x, 0.0))
    return tf.where(x > 0, SELU_SCALE * x, below)


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


@widened
def mish(x: Tensor) -> Tensor:
    return x * tf.tanh(tf.nn.softplus(x))


@widened
def squareplus(x: Tensor, *, b: float) -> Tensor:
    # The square is not formed, and below zero the two terms would cancel.
    root = hypot(x, b**0.5)
    return tf.where(x >= 0, 0.5 * x + 0.5 * root, 0.5 * b / (tf.abs(x) + root))


@widened
def sparse_plus(x: Tensor) -> Tensor:
    inside = clip(x, -1.0, 1.0) + 1.0
    return tf.where(x >= 1.0, x, 0.25 * inside * inside)


@widened
def soft_shrink(x: Tensor, *, lambd: float) -> Tensor:
    inside = (x >= -lambd) & (x <= lambd)
    return tf.where(inside, tf.zeros_like(x), x - copysign(lambd, x))


@widened
def hard_shrink(x: Tensor, *, lambd: float) -> Tensor:
    return tf.where((x >= -lambd) & (x <= lambd), tf.zeros_like(x), x)


def threshold(x: Tensor, *, threshold: float, default: float) -> Tensor:
    return tf.where(x <= threshold, tf.constant(default, x.dtype), x)


OPS: dict[Op, Callable[..., Any]] = {
    **rows_of(vars()),
    ops.SIGMOID: tf.sigmoid,
    ops.RELU: tf.nn.relu,
    ops.RELU6: tf.nn.relu6,
}
NAMES = """
    sigmoid: sigmoid raw.Sigmoid; log_sigmoid: math.log_sigmoid; softplus: nn.softplus raw.Softplus;
    relu: nn.relu raw.Relu; relu6: nn.relu6 raw.Relu6; selu: nn.selu raw.Selu;
    soft_sign: nn.softsign raw.Softsign
"""
