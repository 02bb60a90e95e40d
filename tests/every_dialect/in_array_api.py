"""The rules of `formulas.py` in the names of the Array API standard, by the namespace of the given
array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Array = Any


def logistic(x: Array) -> Array:
    xp = x.__array_namespace__()
    z = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1.0, z) / (1.0 + z)


def normal(x: Array, center: float, sigma: float) -> Array:
    xp = x.__array_namespace__()
    return xp.exp(-0.5 * ((x - center) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))


def by_namespace(rule: Callable[..., Any]) -> Callable[..., Any]:
    def written(ctx: Any, grad_out: Array, tin: Array) -> Array:
        return rule(grad_out.__array_namespace__(), grad_out, tin)

    return written


def sigmoid_slope(xp: Any, g: Array, x: Array) -> Array:
    s = logistic(4.0 * x)
    return g * (4.0 * (s * (1.0 - s)))


def multi_gaussian(xp: Any, g: Array, x: Array) -> Array:
    sides = [0.15 * normal(x, center, 3.0) for center in (0.5, -0.5)]
    return g * (1.15 * normal(x, 0.0, 0.5) - sides[0] - sides[1])


def circle(xp: Any, g: Array, x: Array) -> Array:
    r = 4.0 + xp.square(x)
    return g * (8.0 / (r * xp.sqrt(r)))


def s2nn(xp: Any, g: Array, x: Array) -> Array:
    s = logistic(4.0 * x)
    return g * xp.where(x < 0, 4.0 * (s * (1.0 - s)), 1.0 / (x + 1.0))


def log_tailed(xp: Any, g: Array, x: Array) -> Array:
    flat = xp.where(x > 0, 1.0, x - x)
    return g * xp.where(x > 1, 1.0 / x, flat)


def approx_sign(xp: Any, g: Array, x: Array) -> Array:
    x = xp.abs(x)
    return g * xp.where(x <= 1.0, 2.0 - 2.0 * x, 0.0)


def clamp_with_grad(xp: Any, g: Array, x: Array) -> Array:
    outward = ((x > 1) & (g < 0)) | ((x < -1) & (g > 0))
    return xp.where(outward, 0.0, g)


def learned_step(xp: Any, g: Array, x: Array) -> Array:
    step = xp.round(x / 0.5)
    return xp.where(step == xp.clip(step, -4, 3), g, 0.0)


def clip_norm(xp: Any, g: Array, x: Array) -> Array:
    norm = xp.linalg.vector_norm(g)
    return g * xp.minimum(1.0 / xp.maximum(norm, 1e-6), 1.0)


def clip_rms(xp: Any, g: Array, x: Array) -> Array:
    rms = xp.sqrt(xp.mean(xp.square(g)))
    return g / xp.maximum(rms / 0.5, 1.0)


def dorefa(xp: Any, g: Array, x: Array) -> Array:
    t = xp.tanh(x)
    return g * ((1.0 - t**2) / xp.max(xp.abs(t)))


def gumbel_softmax(xp: Any, g: Array, x: Array) -> Array:
    powers = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    y = powers / xp.sum(powers, axis=-1, keepdims=True)
    return y * (g - xp.sum(g * y, axis=-1, keepdims=True))


IN_A_NAMESPACE = {
    "straight_through": lambda xp, g, x: +g,
    "gradient_reversal": lambda xp, g, x: xp.negative(g),
    "gradient_scale": lambda xp, g, x: xp.multiply(g, 0.25),
    "clip_value": lambda xp, g, x: xp.clip(g, -0.5, 0.5),
    "deconvnet": lambda xp, g, x: xp.maximum(g, 0),
    "guided_backprop": lambda xp, g, x: xp.maximum(g, 0) * (x > 0),
    "relu_mask": lambda xp, g, x: g * xp.astype(xp.greater(x, 0), g.dtype),
    "threshold_mask": lambda xp, g, x: xp.where(x >= 0.5, g, xp.zeros_like(g)),
    "clipped_straight_through": lambda xp, g, x: g * (xp.abs(x) <= 1.0),
    "rectangular": lambda xp, g, x: g * xp.logical_and(x >= -0.5, x <= 0.5),
    "boxcar": lambda xp, g, x: g * xp.where(xp.abs(x) < 1.0, 0.5, 0.0),
    "half_open_window": lambda xp, g, x: xp.where((x > -0.5) & (x <= 2.0), g, 0),
    "triangular": lambda xp, g, x: g * xp.maximum(1.0 - xp.abs(x), 0.0),
    "scaled_triangle": lambda xp, g, x: g * (0.3 * xp.clip(1.0 - xp.abs(x), min=0.0)),
    "fast_sigmoid": lambda xp, g, x: g / xp.square(1.0 + 25.0 * xp.abs(x)),
    "superspike": lambda xp, g, x: xp.divide(g, xp.pow(1.0 + 100.0 * xp.abs(x), 2)),
    "soft_sign": lambda xp, g, x: g * (1.5 / (1.0 + xp.abs(3.0 * x)) ** 2),
    "arctan": lambda xp, g, x: g / (1.0 + xp.square(math.pi * x)),
    "sigmoid_slope": sigmoid_slope,
    "tanh_slope": lambda xp, g, x: g * (1.0 - xp.tanh(x) ** 2),
    "erf_slope": lambda xp, g, x: g * (2.0 / math.sqrt(math.pi) * xp.exp(-xp.square(x))),
    "gaussian": lambda xp, g, x: g * normal(x, 0.0, 0.5),
    "multi_gaussian": multi_gaussian,
    "exponential": lambda xp, g, x: g * (2.0 * xp.exp(-2.0 * xp.abs(x))),
    "slayer": lambda xp, g, x: g * xp.exp(-xp.abs(x)),
    "circle": circle,
    "s2nn": s2nn,
    "log_tailed": log_tailed,
    "sign_log_abs": lambda xp, g, x: g / xp.add(1.0, xp.abs(x)),
    "piecewise_leaky_relu": lambda xp, g, x: g * xp.where(xp.abs(x) < 1.0, 0.5, 0.01),
    "q_pseudo_spike": lambda xp, g, x: g * xp.pow(1.0 + xp.abs(x), -3.0),
    "leaky_k_relu": lambda xp, g, x: g * xp.where(x >= 0, 1.0, 0.1),
    "approx_sign": approx_sign,
    "fake_numerical": lambda xp, g, x: g * xp.minimum(1.0 / xp.abs(x), 0.3),
    "beta_smooth_relu": lambda xp, g, x: g * logistic(10.0 * x),
    "clamp_with_grad": clamp_with_grad,
    "learned_step": learned_step,
    "clip_norm": clip_norm,
    "normalize": lambda xp, g, x: g / (xp.sqrt(xp.sum(xp.square(g))) + 1e-3),
    "clip_rms": clip_rms,
    "centralize": lambda xp, g, x: g - xp.mean(g, axis=-1, keepdims=True),
    "magnitude_aware_sign": lambda xp, g, x: (
        g * xp.mean(xp.abs(x), axis=0, keepdims=True) * (xp.abs(x) <= 1.0)
    ),
    "dorefa": dorefa,
    "gumbel_softmax": gumbel_softmax,
}
RULES = {name: by_namespace(rule) for name, rule in IN_A_NAMESPACE.items()}
