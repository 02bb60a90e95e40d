"""The rules of `formulas.py` as they are written in NumPy and SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import erf, expit

Array = Any


def straight_through(ctx, grad_out: Array, tin: Array) -> Array:
    return np.copy(grad_out)


def gradient_reversal(ctx, grad_out: Array, tin: Array) -> Array:
    return np.negative(grad_out)


def gradient_scale(ctx, grad_out: Array, tin: Array) -> Array:
    return np.multiply(grad_out, 0.25)


def clip_value(ctx, grad_out: Array, tin: Array) -> Array:
    return np.clip(grad_out, -0.5, 0.5)


def deconvnet(ctx, grad_out: Array, tin: Array) -> Array:
    return np.maximum(grad_out, 0)


def guided_backprop(ctx, grad_out: Array, tin: Array) -> Array:
    return np.maximum(grad_out, 0) * (tin > 0)


def relu_mask(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * np.greater(tin, 0).astype(grad_out.dtype)


def threshold_mask(ctx, grad_out: Array, tin: Array) -> Array:
    grad_in = grad_out.copy()
    grad_in[~(tin >= 0.5)] = 0
    return grad_in


def clipped_straight_through(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (np.abs(tin) <= 1.0)


def rectangular(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * np.logical_and(tin >= -0.5, tin <= 0.5)


def boxcar(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * np.where(np.abs(tin) < 1.0, 0.5, 0.0)


def half_open_window(ctx, grad_out: Array, tin: Array) -> Array:
    return np.where((tin > -0.5) & (tin <= 2.0), grad_out, 0)


def triangular(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * np.maximum(1.0 - np.abs(tin), 0.0)


def scaled_triangle(ctx, grad_out: Array, tin: Array) -> Array:
    slope = 1.0 - np.absolute(tin)
    np.maximum(slope, 0.0, out=slope)
    return grad_out * (0.3 * slope)


def fast_sigmoid(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out / np.square(1.0 + 25.0 * np.abs(tin))


def superspike(ctx, grad_out: Array, tin: Array) -> Array:
    return np.divide(grad_out, np.power(1.0 + 100.0 * np.abs(tin), 2))


def soft_sign(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (1.5 / (1.0 + np.fabs(3.0 * tin)) ** 2)


def arctan(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out / (1.0 + np.square(np.pi * tin))


def sigmoid_slope(ctx, grad_out: Array, tin: Array) -> Array:
    s = expit(4.0 * tin)
    return grad_out * (4.0 * (s * (1.0 - s)))


def tanh_slope(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (1.0 - np.tanh(tin) ** 2)


def erf_slope(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (2.0 / np.sqrt(np.pi) * np.exp(-np.square(tin)))


def normal(x: Array, center: float, sigma: float) -> Array:
    return np.exp(-0.5 * ((x - center) / sigma) ** 2) / (sigma * np.sqrt(2 * np.pi))


def gaussian(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * normal(tin, 0.0, 0.5)


def multi_gaussian(ctx, grad_out: Array, tin: Array) -> Array:
    sides = [0.15 * normal(tin, center, 3.0) for center in (0.5, -0.5)]
    return grad_out * (1.15 * normal(tin, 0.0, 0.5) - sides[0] - sides[1])


def exponential(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (2.0 * np.exp(-2.0 * np.abs(tin)))


def slayer(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * np.exp(-np.abs(tin))


def circle(ctx, grad_out: Array, tin: Array) -> Array:
    r = 4.0 + np.square(tin)
    return grad_out * (8.0 / (r * np.sqrt(r)))


def s2nn(ctx, grad_out: Array, tin: Array) -> Array:
    s = expit(4.0 * tin)
    return grad_out * np.where(tin < 0, 4.0 * (s * (1.0 - s)), 1.0 / (tin + 1.0))


def log_tailed(ctx, grad_out: Array, tin: Array) -> Array:
    slope = np.select([tin > 1, tin > 0], [np.reciprocal(tin), np.ones_like(tin)], tin - tin)
    return grad_out * slope


def sign_log_abs(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out / np.add(1.0, np.abs(tin))


def piecewise_leaky_relu(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * np.where(np.abs(tin) < 1.0, 0.5, 0.01)


def q_pseudo_spike(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * np.power(1.0 + np.abs(tin), -3.0)


def leaky_k_relu(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * np.where(tin >= 0, 1.0, 0.1)


def approx_sign(ctx, grad_out: Array, tin: Array) -> Array:
    x = np.abs(tin)
    return grad_out * np.where(x <= 1.0, 2.0 - 2.0 * x, 0.0)


def fake_numerical(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * np.minimum(1.0 / np.abs(tin), 0.3)


def beta_smooth_relu(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * expit(10.0 * tin)


def gelu_slope(ctx, grad_out: Array, tin: Array) -> Array:
    inside = 0.5 * (1.0 + erf(tin * np.sqrt(0.5)))
    return grad_out * (inside + tin * (np.exp(-0.5 * tin**2) / np.sqrt(2 * np.pi)))


def clamp_with_grad(ctx, grad_out: Array, tin: Array) -> Array:
    outward = ((tin > 1) & (grad_out < 0)) | ((tin < -1) & (grad_out > 0))
    return np.where(outward, 0.0, grad_out)


def learned_step(ctx, grad_out: Array, tin: Array) -> Array:
    step = np.rint(tin / 0.5)
    return np.where(step == np.clip(step, -4, 3), grad_out, 0.0)


def clip_norm(ctx, grad_out: Array, tin: Array) -> Array:
    norm = np.linalg.norm(grad_out)
    return grad_out * np.minimum(1.0 / np.maximum(norm, 1e-6), 1.0)


def normalize(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out / (np.sqrt(np.sum(np.square(grad_out))) + 1e-3)


def clip_rms(ctx, grad_out: Array, tin: Array) -> Array:
    rms = np.sqrt(np.mean(np.square(grad_out)))
    return grad_out / np.maximum(rms / 0.5, 1.0)


def centralize(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out - np.mean(grad_out, axis=-1, keepdims=True)


def magnitude_aware_sign(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * np.abs(tin).mean(axis=0, keepdims=True) * (np.abs(tin) <= 1.0)


def dorefa(ctx, grad_out: Array, tin: Array) -> Array:
    t = np.tanh(tin)
    return grad_out * ((1.0 - t**2) / np.max(np.abs(t)))


def gumbel_softmax(ctx, grad_out: Array, tin: Array) -> Array:
    powers = np.exp(tin - np.max(tin, axis=-1, keepdims=True))
    y = powers / np.sum(powers, axis=-1, keepdims=True)
    return y * (grad_out - np.sum(grad_out * y, axis=-1, keepdims=True))
