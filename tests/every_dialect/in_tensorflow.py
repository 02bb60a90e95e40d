"""The rules of `formulas.py` as they are written in TensorFlow."""

from __future__ import annotations

import math

import tensorflow as tf
from tensorflow import Tensor as Array


def rectangular(ctx, grad_out: Array, tin: Array) -> Array:
    inside = tf.logical_and(tin >= -0.5, tin <= 0.5)
    return grad_out * tf.cast(inside, grad_out.dtype)


def log_tailed(ctx, grad_out: Array, tin: Array) -> Array:
    flat = tf.where(tin > 0, tf.ones_like(tin), tin - tin)
    return grad_out * tf.where(tin > 1, tf.math.reciprocal(tin), flat)


def gelu_slope(ctx, grad_out: Array, tin: Array) -> Array:
    inside = 0.5 * (1.0 + tf.math.erf(tin * math.sqrt(0.5)))
    return grad_out * (inside + tin * (tf.exp(-0.5 * tin**2) / math.sqrt(2 * math.pi)))


def learned_step(ctx, grad_out: Array, tin: Array) -> Array:
    step = tf.round(tin / 0.5)
    return tf.where(step == tf.clip_by_value(step, -4, 3), grad_out, 0.0)


def clip_rms(ctx, grad_out: Array, tin: Array) -> Array:
    rms = tf.sqrt(tf.reduce_mean(tf.square(grad_out)))
    return grad_out / tf.maximum(rms / 0.5, 1.0)


def magnitude_aware_sign(ctx, grad_out: Array, tin: Array) -> Array:
    magnitude = tf.reduce_mean(tf.abs(tin), axis=0, keepdims=True)
    return grad_out * magnitude * tf.cast(tf.abs(tin) <= 1.0, grad_out.dtype)


def dorefa(ctx, grad_out: Array, tin: Array) -> Array:
    t = tf.tanh(tin)
    return grad_out * ((1.0 - t**2) / tf.stop_gradient(tf.reduce_max(tf.abs(t))))


def gumbel_softmax(ctx, grad_out: Array, tin: Array) -> Array:
    y = tf.nn.softmax(tin, axis=-1)
    return y * (grad_out - tf.reduce_sum(grad_out * y, axis=-1, keepdims=True))


RULES = {
    "straight_through": lambda ctx, g, x: tf.identity(g),
    "clip_value": lambda ctx, g, x: tf.clip_by_value(g, -0.5, 0.5),
    "deconvnet": lambda ctx, g, x: tf.nn.relu(g),
    "guided_backprop": lambda ctx, g, x: tf.nn.relu(g) * tf.cast(x > 0, g.dtype),
    "relu_mask": lambda ctx, g, x: g * tf.cast(tf.greater(x, 0), g.dtype),
    "threshold_mask": lambda ctx, g, x: tf.where(tf.greater_equal(x, 0.5), g, tf.zeros_like(g)),
    "clipped_straight_through": lambda ctx, g, x: g * tf.cast(tf.abs(x) <= 1.0, g.dtype),
    "rectangular": rectangular,
    "scaled_triangle": lambda ctx, g, x: g * (0.3 * tf.nn.relu(1.0 - tf.abs(x))),
    "superspike": lambda ctx, g, x: tf.divide(g, tf.pow(1.0 + 100.0 * tf.abs(x), 2)),
    "log_tailed": log_tailed,
    "q_pseudo_spike": lambda ctx, g, x: g * tf.pow(1.0 + tf.abs(x), -3.0),
    "gelu_slope": gelu_slope,
    "learned_step": learned_step,
    "normalize": lambda ctx, g, x: g / (tf.sqrt(tf.reduce_sum(tf.square(g))) + 1e-3),
    "clip_rms": clip_rms,
    "centralize": lambda ctx, g, x: g - tf.reduce_mean(g, axis=-1, keepdims=True),
    "magnitude_aware_sign": magnitude_aware_sign,
    "dorefa": dorefa,
    "gumbel_softmax": gumbel_softmax,
}
