"""The rules of `formulas.py` as they are written in keras.ops, for whatever Keras runs on."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops
from keras.ops import where

Array = Any


def clipped_straight_through(ctx, grad_out: Array, tin: Array) -> Array:
    inside = ops.less_equal(ops.abs(tin), 1.0)
    return ops.multiply(grad_out, ops.cast(inside, "float32"))


def rectangular(ctx, grad_out: Array, tin: Array) -> Array:
    inside = ops.logical_and(tin >= -0.5, tin <= 0.5)
    return grad_out * ops.cast(inside, grad_out.dtype)


def learned_step(ctx, grad_out: Array, tin: Array) -> Array:
    step = ops.round(tin / 0.5)
    return ops.where(step == ops.clip(step, -4, 3), grad_out, 0.0)


def magnitude_aware_sign(ctx, grad_out: Array, tin: Array) -> Array:
    magnitude = ops.mean(ops.abs(tin), axis=0, keepdims=True)
    return grad_out * magnitude * ops.cast(ops.abs(tin) <= 1.0, grad_out.dtype)


def dorefa(ctx, grad_out: Array, tin: Array) -> Array:
    t = ops.tanh(tin)
    return grad_out * ((1.0 - t**2) / ops.stop_gradient(ops.max(ops.abs(t))))


RULES = {
    "deconvnet": lambda ctx, g, x: keras.activations.relu(g),
    "guided_backprop": lambda ctx, g, x: ops.relu(g) * ops.cast(x > 0, g.dtype),
    "relu_mask": lambda ctx, g, x: g * ops.cast(ops.greater(x, 0), dtype=g.dtype),
    "threshold_mask": lambda ctx, g, x: where(ops.greater_equal(x, 0.5), g, ops.zeros_like(g)),
    "clipped_straight_through": clipped_straight_through,
    "rectangular": rectangular,
    "scaled_triangle": lambda ctx, g, x: g * (0.3 * ops.relu(1.0 - ops.absolute(x))),
    "beta_smooth_relu": lambda ctx, g, x: g * keras.activations.sigmoid(10.0 * x),
    "learned_step": learned_step,
    "magnitude_aware_sign": magnitude_aware_sign,
    "dorefa": dorefa,
}
