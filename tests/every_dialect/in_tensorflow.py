"""The rules of `formulas.py` as they are written in TensorFlow."""

from __future__ import annotations

import math

import tensorflow as tf
from tensorflow import Tensor as Array


def straight_through(ctx, grad_out: Array, tin: Array) -> Array:
    return tf.identity(grad_out)


def gradient_reversal(ctx, grad_out: Array, tin: Array) -> Array:
    return tf.negative(grad_out)


def gradient_scale(ctx, grad_out: Array, tin: Array) -> Array:
    return tf.multiply(grad_out, 0.25)


def clip_value(ctx, grad_out: Array, tin: Array) -> Array:
    return tf.clip_by_value(grad_out, -0.5, 0.5)


def deconvnet(ctx, grad_out: Array, tin: Array) -> Array:
    return tf.nn.relu(grad_out)


def guided_backprop(ctx, grad_out: Array, tin: Array) -> Array:
    return tf.nn.relu(grad_out) * tf.cast(tin > 0, grad_out.dtype)


def relu_mask(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * tf.cast(tf.greater(tin, 0), grad_out.dtype)


def threshold_mask(ctx, grad_out: Array, tin: Array) -> Array:
    return tf.where(tf.greater_equal(tin, 0.5), grad_out, tf.zeros_like(grad_out))


def clipped_straight_through(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * tf.cast(tf.abs(tin) <= 1.0, grad_out.dtype)


def rectangular(ctx, grad_out: Array, tin: Array) -> Array:
    inside = tf.logical_and(tin >= -0.5, tin <= 0.5)
    return grad_out * tf.cast(inside, grad_out.dtype)


def boxcar(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * tf.where(tf.abs(tin) < 1.0, 0.5, 0.0)


def half_open_window(ctx, grad_out: Array, tin: Array) -> Array:
    return tf.where((tin > -0.5) & (tin <= 2.0), grad_out, 0)


def triangular(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * tf.maximum(1.0 - tf.abs(tin), 0.0)


def scaled_triangle(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (0.3 * tf.nn.relu(1.0 - tf.abs(tin)))


def fast_sigmoid(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out / tf.square(1.0 + 25.0 * tf.abs(tin))


def superspike(ctx, grad_out: Array, tin: Array) -> Array:
    return tf.divide(grad_out, tf.pow(1.0 + 100.0 * tf.abs(tin), 2))


def soft_sign(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (1.5 / (1.0 + tf.abs(3.0 * tin)) ** 2)


def arctan(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out / (1.0 + tf.square(math.pi * tin))


def sigmoid_slope(ctx, grad_out: Array, tin: Array) -> Array:
    s = tf.sigmoid(4.0 * tin)
    return grad_out * (4.0 * (s * (1.0 - s)))


def tanh_slope(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (1.0 - tf.tanh(tin) ** 2)


def erf_slope(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (2.0 / math.sqrt(math.pi) * tf.exp(-tf.square(tin)))


def normal(x: Array, center: float, sigma: float) -> Array:
    return tf.exp(-0.5 * ((x - center) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))


def gaussian(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * normal(tin, 0.0, 0.5)


def multi_gaussian(ctx, grad_out: Array, tin: Array) -> Array:
    sides = [0.15 * normal(tin, center, 3.0) for center in (0.5, -0.5)]
    return grad_out * (1.15 * normal(tin, 0.0, 0.5) - sides[0] - sides[1])


def exponential(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (2.0 * tf.exp(-2.0 * tf.abs(tin)))


def slayer(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * tf.exp(-tf.abs(tin))


def circle(ctx, grad_out: Array, tin: Array) -> Array:
    r = 4.0 + tf.square(tin)
    return grad_out * (8.0 / (r * tf.sqrt(r)))


def s2nn(ctx, grad_out: Array, tin: Array) -> Array:
    s = tf.sigmoid(4.0 * tin)
    return grad_out * tf.where(tin < 0, 4.0 * (s * (1.0 - s)), 1.0 / (tin + 1.0))


def log_tailed(ctx, grad_out: Array, tin: Array) -> Array:
    flat = tf.where(tin > 0, tf.ones_like(tin), tin - tin)
    return grad_out * tf.where(tin > 1, tf.math.reciprocal(tin), flat)


def sign_log_abs(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out / tf.add(1.0, tf.abs(tin))


def piecewise_leaky_relu(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * tf.where(tf.abs(tin) < 1.0, 0.5, 0.01)


def q_pseudo_spike(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * tf.pow(1.0 + tf.abs(tin), -3.0)


def leaky_k_relu(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * tf.where(tin >= 0, 1.0, 0.1)


def approx_sign(ctx, grad_out: Array, tin: Array) -> Array:
    x = tf.abs(tin)
    return grad_out * tf.where(x <= 1.0, 2.0 - 2.0 * x, 0.0)


def fake_numerical(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * tf.minimum(1.0 / tf.abs(tin), 0.3)


def beta_smooth_relu(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * tf.sigmoid(10.0 * tin)


def gelu_slope(ctx, grad_out: Array, tin: Array) -> Array:
    inside = 0.5 * (1.0 + tf.math.erf(tin * math.sqrt(0.5)))
    return grad_out * (inside + tin * (tf.exp(-0.5 * tin**2) / math.sqrt(2 * math.pi)))


def clamp_with_grad(ctx, grad_out: Array, tin: Array) -> Array:
    outward = ((tin > 1) & (grad_out < 0)) | ((tin < -1) & (grad_out > 0))
    return tf.where(outward, 0.0, grad_out)


def learned_step(ctx, grad_out: Array, tin: Array) -> Array:
    step = tf.round(tin / 0.5)
    return tf.where(step == tf.clip_by_value(step, -4, 3), grad_out, 0.0)


def clip_norm(ctx, grad_out: Array, tin: Array) -> Array:
    norm = tf.norm(grad_out)
    return grad_out * tf.minimum(1.0 / tf.maximum(norm, 1e-6), 1.0)


def normalize(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out / (tf.sqrt(tf.reduce_sum(tf.square(grad_out))) + 1e-3)


def clip_rms(ctx, grad_out: Array, tin: Array) -> Array:
    rms = tf.sqrt(tf.reduce_mean(tf.square(grad_out)))
    return grad_out / tf.maximum(rms / 0.5, 1.0)


def centralize(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out - tf.reduce_mean(grad_out, axis=-1, keepdims=True)


def magnitude_aware_sign(ctx, grad_out: Array, tin: Array) -> Array:
    magnitude = tf.reduce_mean(tf.abs(tin), axis=0, keepdims=True)
    return grad_out * magnitude * tf.cast(tf.abs(tin) <= 1.0, grad_out.dtype)


def dorefa(ctx, grad_out: Array, tin: Array) -> Array:
    t = tf.tanh(tin)
    return grad_out * ((1.0 - t**2) / tf.stop_gradient(tf.reduce_max(tf.abs(t))))


def gumbel_softmax(ctx, grad_out: Array, tin: Array) -> Array:
    y = tf.nn.softmax(tin, axis=-1)
    return y * (grad_out - tf.reduce_sum(grad_out * y, axis=-1, keepdims=True))
