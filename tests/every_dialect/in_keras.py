"""The rules of `formulas.py` as they are written in keras.ops, for whatever Keras runs on."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops
from keras.ops import where

Array = Any


def straight_through(ctx, grad_out: Array, tin: Array) -> Array:
    return ops.copy(grad_out)


def gradient_reversal(ctx, grad_out: Array, tin: Array) -> Array:
    return ops.negative(grad_out)


def gradient_scale(ctx, grad_out: Array, tin: Array) -> Array:
    return ops.multiply(grad_out, 0.25)


def clip_value(ctx, grad_out: Array, tin: Array) -> Array:
    return ops.clip(grad_out, -0.5, 0.5)


def deconvnet(ctx, grad_out: Array, tin: Array) -> Array:
    return keras.activations.relu(grad_out)


def guided_backprop(ctx, grad_out: Array, tin: Array) -> Array:
    return ops.relu(grad_out) * ops.cast(tin > 0, grad_out.dtype)


def relu_mask(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * ops.cast(ops.greater(tin, 0), dtype=grad_out.dtype)


def threshold_mask(ctx, grad_out: Array, tin: Array) -> Array:
    return where(ops.greater_equal(tin, 0.5), grad_out, ops.zeros_like(grad_out))


def clipped_straight_through(ctx, grad_out: Array, tin: Array) -> Array:
    inside = ops.less_equal(ops.abs(tin), 1.0)
    return ops.multiply(grad_out, ops.cast(inside, "float32"))


def rectangular(ctx, grad_out: Array, tin: Array) -> Array:
    inside = ops.logical_and(tin >= -0.5, tin <= 0.5)
    return grad_out * ops.cast(inside, grad_out.dtype)


def boxcar(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * ops.where(ops.abs(tin) < 1.0, 0.5, 0.0)


def half_open_window(ctx, grad_out: Array, tin: Array) -> Array:
    return ops.where((tin > -0.5) & (tin <= 2.0), grad_out, 0)


def triangular(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * ops.maximum(1.0 - ops.abs(tin), 0.0)


def scaled_triangle(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (0.3 * ops.relu(1.0 - ops.absolute(tin)))


def fast_sigmoid(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out / ops.square(1.0 + 25.0 * ops.abs(tin))


def superspike(ctx, grad_out: Array, tin: Array) -> Array:
    return ops.divide(grad_out, ops.power(1.0 + 100.0 * ops.abs(tin), 2))


def soft_sign(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (1.5 / (1.0 + ops.abs(3.0 * tin)) ** 2)


def arctan(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out / (1.0 + ops.square(math.pi * tin))


def sigmoid_slope(ctx, grad_out: Array, tin: Array) -> Array:
    s = ops.sigmoid(4.0 * tin)
    return grad_out * (4.0 * (s * (1.0 - s)))


def tanh_slope(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (1.0 - ops.tanh(tin) ** 2)


def erf_slope(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (2.0 / math.sqrt(math.pi) * ops.exp(-ops.square(tin)))


def normal(x: Array, center: float, sigma: float) -> Array:
    return ops.exp(-0.5 * ((x - center) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))


def gaussian(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * normal(tin, 0.0, 0.5)


def multi_gaussian(ctx, grad_out: Array, tin: Array) -> Array:
    sides = [0.15 * normal(tin, center, 3.0) for center in (0.5, -0.5)]
    return grad_out * (1.15 * normal(tin, 0.0, 0.5) - sides[0] - sides[1])


def exponential(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (2.0 * ops.exp(-2.0 * ops.abs(tin)))


def slayer(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * ops.exp(-ops.abs(tin))


def circle(ctx, grad_out: Array, tin: Array) -> Array:
    r = 4.0 + ops.square(tin)
    return grad_out * (8.0 / (r * ops.sqrt(r)))


def s2nn(ctx, grad_out: Array, tin: Array) -> Array:
    s = ops.sigmoid(4.0 * tin)
    return grad_out * ops.where(tin < 0, 4.0 * (s * (1.0 - s)), 1.0 / (tin + 1.0))


def log_tailed(ctx, grad_out: Array, tin: Array) -> Array:
    slope = ops.select([tin > 1, tin > 0], [ops.reciprocal(tin), ops.ones_like(tin)], tin - tin)
    return grad_out * slope


def sign_log_abs(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out / ops.add(1.0, ops.abs(tin))


def piecewise_leaky_relu(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * ops.where(ops.abs(tin) < 1.0, 0.5, 0.01)


def q_pseudo_spike(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * ops.power(1.0 + ops.abs(tin), -3.0)


def leaky_k_relu(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * ops.where(tin >= 0, 1.0, 0.1)


def approx_sign(ctx, grad_out: Array, tin: Array) -> Array:
    x = ops.abs(tin)
    return grad_out * ops.where(x <= 1.0, 2.0 - 2.0 * x, 0.0)


def fake_numerical(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * ops.minimum(1.0 / ops.abs(tin), 0.3)


def beta_smooth_relu(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * keras.activations.sigmoid(10.0 * tin)


def gelu_slope(ctx, grad_out: Array, tin: Array) -> Array:
    inside = 0.5 * (1.0 + ops.erf(tin * math.sqrt(0.5)))
    return grad_out * (inside + tin * (ops.exp(-0.5 * tin**2) / math.sqrt(2 * math.pi)))


def clamp_with_grad(ctx, grad_out: Array, tin: Array) -> Array:
    outward = ((tin > 1) & (grad_out < 0)) | ((tin < -1) & (grad_out > 0))
    return ops.where(outward, 0.0, grad_out)


def learned_step(ctx, grad_out: Array, tin: Array) -> Array:
    step = ops.round(tin / 0.5)
    return ops.where(step == ops.clip(step, -4, 3), grad_out, 0.0)


def clip_norm(ctx, grad_out: Array, tin: Array) -> Array:
    norm = ops.norm(grad_out)
    return grad_out * ops.minimum(1.0 / ops.maximum(norm, 1e-6), 1.0)


def normalize(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out / (ops.sqrt(ops.sum(ops.square(grad_out))) + 1e-3)


def clip_rms(ctx, grad_out: Array, tin: Array) -> Array:
    rms = ops.sqrt(ops.mean(ops.square(grad_out)))
    return grad_out / ops.maximum(rms / 0.5, 1.0)


def centralize(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out - ops.mean(grad_out, axis=-1, keepdims=True)


def magnitude_aware_sign(ctx, grad_out: Array, tin: Array) -> Array:
    magnitude = ops.mean(ops.abs(tin), axis=0, keepdims=True)
    return grad_out * magnitude * ops.cast(ops.abs(tin) <= 1.0, grad_out.dtype)


def dorefa(ctx, grad_out: Array, tin: Array) -> Array:
    t = ops.tanh(tin)
    return grad_out * ((1.0 - t**2) / ops.stop_gradient(ops.max(ops.abs(t))))


def gumbel_softmax(ctx, grad_out: Array, tin: Array) -> Array:
    y = ops.softmax(tin, axis=-1)
    return y * (grad_out - ops.sum(grad_out * y, axis=-1, keepdims=True))
