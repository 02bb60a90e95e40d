"""The rules of `formulas.py` in the names of the Array API standard, by the namespace of the given
array.
"""

from __future__ import annotations

import math
from typing import Any

Array = Any


def logistic(x: Array) -> Array:
    xp = x.__array_namespace__()
    z = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1.0, z) / (1.0 + z)


def straight_through(ctx, grad_out: Array, tin: Array) -> Array:
    return +grad_out


def gradient_reversal(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return xp.negative(grad_out)


def gradient_scale(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return xp.multiply(grad_out, 0.25)


def clip_value(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return xp.clip(grad_out, -0.5, 0.5)


def deconvnet(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return xp.maximum(grad_out, 0)


def guided_backprop(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return xp.maximum(grad_out, 0) * (tin > 0)


def relu_mask(ctx, grad_out: Array, tin: Array) -> Array:
    xp = tin.__array_namespace__()
    return grad_out * xp.astype(xp.greater(tin, 0), grad_out.dtype)


def threshold_mask(ctx, grad_out: Array, tin: Array) -> Array:
    xp = tin.__array_namespace__()
    return xp.where(tin >= 0.5, grad_out, xp.zeros_like(grad_out))


def clipped_straight_through(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return grad_out * (xp.abs(tin) <= 1.0)


def rectangular(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return grad_out * xp.logical_and(tin >= -0.5, tin <= 0.5)


def boxcar(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return grad_out * xp.where(xp.abs(tin) < 1.0, 0.5, 0.0)


def half_open_window(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return xp.where((tin > -0.5) & (tin <= 2.0), grad_out, 0)


def triangular(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return grad_out * xp.maximum(1.0 - xp.abs(tin), 0.0)


def scaled_triangle(ctx, grad_out: Array, tin: Array) -> Array:
    xp = tin.__array_namespace__()
    return grad_out * (0.3 * xp.clip(1.0 - xp.abs(tin), min=0.0))


def fast_sigmoid(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return grad_out / xp.square(1.0 + 25.0 * xp.abs(tin))


def superspike(ctx, grad_out: Array, tin: Array) -> Array:
    xp = tin.__array_namespace__()
    return xp.divide(grad_out, xp.pow(1.0 + 100.0 * xp.abs(tin), 2))


def soft_sign(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return grad_out * (1.5 / (1.0 + xp.abs(3.0 * tin)) ** 2)


def arctan(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return grad_out / (1.0 + xp.square(math.pi * tin))


def sigmoid_slope(ctx, grad_out: Array, tin: Array) -> Array:
    s = logistic(4.0 * tin)
    return grad_out * (4.0 * (s * (1.0 - s)))


def tanh_slope(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return grad_out * (1.0 - xp.tanh(tin) ** 2)


def erf_slope(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return grad_out * (2.0 / math.sqrt(math.pi) * xp.exp(-xp.square(tin)))


def normal(x: Array, center: float, sigma: float) -> Array:
    xp = x.__array_namespace__()
    return xp.exp(-0.5 * ((x - center) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))


def gaussian(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * normal(tin, 0.0, 0.5)


def multi_gaussian(ctx, grad_out: Array, tin: Array) -> Array:
    sides = [0.15 * normal(tin, center, 3.0) for center in (0.5, -0.5)]
    return grad_out * (1.15 * normal(tin, 0.0, 0.5) - sides[0] - sides[1])


def exponential(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return grad_out * (2.0 * xp.exp(-2.0 * xp.abs(tin)))


def slayer(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return grad_out * xp.exp(-xp.abs(tin))


def circle(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    r = 4.0 + xp.square(tin)
    return grad_out * (8.0 / (r * xp.sqrt(r)))


def s2nn(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    s = logistic(4.0 * tin)
    return grad_out * xp.where(tin < 0, 4.0 * (s * (1.0 - s)), 1.0 / (tin + 1.0))


def log_tailed(ctx, grad_out: Array, tin: Array) -> Array:
    xp = tin.__array_namespace__()
    flat = xp.where(tin > 0, 1.0, tin - tin)
    return grad_out * xp.where(tin > 1, 1.0 / tin, flat)


def sign_log_abs(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return grad_out / xp.add(1.0, xp.abs(tin))


def piecewise_leaky_relu(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return grad_out * xp.where(xp.abs(tin) < 1.0, 0.5, 0.01)


def q_pseudo_spike(ctx, grad_out: Array, tin: Array) -> Array:
    xp = tin.__array_namespace__()
    return grad_out * xp.pow(1.0 + xp.abs(tin), -3.0)


def leaky_k_relu(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return grad_out * xp.where(tin >= 0, 1.0, 0.1)


def approx_sign(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    x = xp.abs(tin)
    return grad_out * xp.where(x <= 1.0, 2.0 - 2.0 * x, 0.0)


def fake_numerical(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return grad_out * xp.minimum(1.0 / xp.abs(tin), 0.3)


def beta_smooth_relu(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * logistic(10.0 * tin)


def clamp_with_grad(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    outward = ((tin > 1) & (grad_out < 0)) | ((tin < -1) & (grad_out > 0))
    return xp.where(outward, 0.0, grad_out)


def learned_step(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    step = xp.round(tin / 0.5)
    return xp.where(step == xp.clip(step, -4, 3), grad_out, 0.0)


def clip_norm(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    norm = xp.linalg.vector_norm(grad_out)
    return grad_out * xp.minimum(1.0 / xp.maximum(norm, 1e-6), 1.0)


def normalize(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return grad_out / (xp.sqrt(xp.sum(xp.square(grad_out))) + 1e-3)


def clip_rms(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    rms = xp.sqrt(xp.mean(xp.square(grad_out)))
    return grad_out / xp.maximum(rms / 0.5, 1.0)


def centralize(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return grad_out - xp.mean(grad_out, axis=-1, keepdims=True)


def magnitude_aware_sign(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    return grad_out * xp.mean(xp.abs(tin), axis=0, keepdims=True) * (xp.abs(tin) <= 1.0)


def dorefa(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    t = xp.tanh(tin)
    return grad_out * ((1.0 - t**2) / xp.max(xp.abs(t)))


def gumbel_softmax(ctx, grad_out: Array, tin: Array) -> Array:
    xp = grad_out.__array_namespace__()
    powers = xp.exp(tin - xp.max(tin, axis=-1, keepdims=True))
    y = powers / xp.sum(powers, axis=-1, keepdims=True)
    return y * (grad_out - xp.sum(grad_out * y, axis=-1, keepdims=True))
