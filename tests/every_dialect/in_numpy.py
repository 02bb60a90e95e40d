"""The rules of `formulas.py` as they are written in NumPy and SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import erf, expit

Array = Any


def threshold_mask(ctx, grad_out: Array, tin: Array) -> Array:
    grad_in = grad_out.copy()
    grad_in[~(tin >= 0.5)] = 0
    return grad_in


def scaled_triangle(ctx, grad_out: Array, tin: Array) -> Array:
    slope = 1.0 - np.absolute(tin)
    np.maximum(slope, 0.0, out=slope)
    return grad_out * (0.3 * slope)


def sigmoid_slope(ctx, grad_out: Array, tin: Array) -> Array:
    s = expit(4.0 * tin)
    return grad_out * (4.0 * (s * (1.0 - s)))


def normal(x: Array, center: float, sigma: float) -> Array:
    return np.exp(-0.5 * ((x - center) / sigma) ** 2) / (sigma * np.sqrt(2 * np.pi))


def s2nn(ctx, grad_out: Array, tin: Array) -> Array:
    s = expit(4.0 * tin)
    return grad_out * np.where(tin < 0, 4.0 * (s * (1.0 - s)), 1.0 / (tin + 1.0))


def gelu_slope(ctx, grad_out: Array, tin: Array) -> Array:
    inside = 0.5 * (1.0 + erf(tin * np.sqrt(0.5)))
    return grad_out * (inside + tin * (np.exp(-0.5 * tin**2) / np.sqrt(2 * np.pi)))


def clip_norm(ctx, grad_out: Array, tin: Array) -> Array:
    norm = np.linalg.norm(grad_out)
    return grad_out * np.minimum(1.0 / np.maximum(norm, 1e-6), 1.0)


def gumbel_softmax(ctx, grad_out: Array, tin: Array) -> Array:
    powers = np.exp(tin - np.max(tin, axis=-1, keepdims=True))
    y = powers / np.sum(powers, axis=-1, keepdims=True)
    return y * (grad_out - np.sum(grad_out * y, axis=-1, keepdims=True))


RULES = {
    "deconvnet": lambda ctx, g, x: np.maximum(g, 0),
    "threshold_mask": threshold_mask,
    "scaled_triangle": scaled_triangle,
    "soft_sign": lambda ctx, g, x: g * (1.5 / (1.0 + np.fabs(3.0 * x)) ** 2),
    "sigmoid_slope": sigmoid_slope,
    "erf_slope": lambda ctx, g, x: g * (2.0 / np.sqrt(np.pi) * np.exp(-np.square(x))),
    "s2nn": s2nn,
    "beta_smooth_relu": lambda ctx, g, x: g * expit(10.0 * x),
    "gelu_slope": gelu_slope,
    "clip_norm": clip_norm,
    "gumbel_softmax": gumbel_softmax,
}
