"""The rules of `formulas.py` whose words are the same in several libraries: `lib` is that of the
dialect's file which takes them, and a rule of its own comes before one of these.
"""

from __future__ import annotations

import math
from typing import Any

lib: Any = None  # that of the dialect
Array = Any


def sigmoid_slope(ctx, grad_out: Array, tin: Array) -> Array:
    s = lib.sigmoid(4.0 * tin)
    return grad_out * (4.0 * (s * (1.0 - s)))


def normal(x: Array, center: float, sigma: float) -> Array:
    return lib.exp(-0.5 * ((x - center) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))


def multi_gaussian(ctx, grad_out: Array, tin: Array) -> Array:
    sides = [0.15 * normal(tin, center, 3.0) for center in (0.5, -0.5)]
    return grad_out * (1.15 * normal(tin, 0.0, 0.5) - sides[0] - sides[1])


def circle(ctx, grad_out: Array, tin: Array) -> Array:
    r = 4.0 + lib.square(tin)
    return grad_out * (8.0 / (r * lib.sqrt(r)))


def s2nn(ctx, grad_out: Array, tin: Array) -> Array:
    s = lib.sigmoid(4.0 * tin)
    return grad_out * lib.where(tin < 0, 4.0 * (s * (1.0 - s)), 1.0 / (tin + 1.0))


def log_tailed(ctx, grad_out: Array, tin: Array) -> Array:
    slope = lib.select([tin > 1, tin > 0], [lib.reciprocal(tin), lib.ones_like(tin)], tin - tin)
    return grad_out * slope


def approx_sign(ctx, grad_out: Array, tin: Array) -> Array:
    x = lib.abs(tin)
    return grad_out * lib.where(x <= 1.0, 2.0 - 2.0 * x, 0.0)


def gelu_slope(ctx, grad_out: Array, tin: Array) -> Array:
    inside = 0.5 * (1.0 + lib.erf(tin * math.sqrt(0.5)))
    return grad_out * (inside + tin * (lib.exp(-0.5 * tin**2) / math.sqrt(2 * math.pi)))


def clamp_with_grad(ctx, grad_out: Array, tin: Array) -> Array:
    outward = ((tin > 1) & (grad_out < 0)) | ((tin < -1) & (grad_out > 0))
    return lib.where(outward, 0.0, grad_out)


def learned_step(ctx, grad_out: Array, tin: Array) -> Array:
    step = lib.rint(tin / 0.5)
    return lib.where(step == lib.clip(step, -4, 3), grad_out, 0.0)


def clip_norm(ctx, grad_out: Array, tin: Array) -> Array:
    norm = lib.norm(grad_out)
    return grad_out * lib.minimum(1.0 / lib.maximum(norm, 1e-6), 1.0)


def clip_rms(ctx, grad_out: Array, tin: Array) -> Array:
    rms = lib.sqrt(lib.mean(lib.square(grad_out)))
    return grad_out / lib.maximum(rms / 0.5, 1.0)


def dorefa(ctx, grad_out: Array, tin: Array) -> Array:
    t = lib.tanh(tin)
    return grad_out * ((1.0 - t**2) / lib.max(lib.abs(t)))


def gumbel_softmax(ctx, grad_out: Array, tin: Array) -> Array:
    y = lib.softmax(tin, axis=-1)
    return y * (grad_out - lib.sum(grad_out * y, axis=-1, keepdims=True))


RULES = {
    "straight_through": lambda ctx, g, x: lib.copy(g),
    "gradient_reversal": lambda ctx, g, x: lib.negative(g),
    "gradient_scale": lambda ctx, g, x: lib.multiply(g, 0.25),
    "clip_value": lambda ctx, g, x: lib.clip(g, -0.5, 0.5),
    "guided_backprop": lambda ctx, g, x: lib.maximum(g, 0) * (x > 0),
    "relu_mask": lambda ctx, g, x: g * lib.greater(x, 0).astype(g.dtype),
    "clipped_straight_through": lambda ctx, g, x: g * (lib.abs(x) <= 1.0),
    "rectangular": lambda ctx, g, x: g * lib.logical_and(x >= -0.5, x <= 0.5),
    "boxcar": lambda ctx, g, x: g * lib.where(lib.abs(x) < 1.0, 0.5, 0.0),
    "half_open_window": lambda ctx, g, x: lib.where((x > -0.5) & (x <= 2.0), g, 0),
    "triangular": lambda ctx, g, x: g * lib.maximum(1.0 - lib.abs(x), 0.0),
    "fast_sigmoid": lambda ctx, g, x: g / lib.square(1.0 + 25.0 * lib.abs(x)),
    "superspike": lambda ctx, g, x: lib.divide(g, lib.power(1.0 + 100.0 * lib.abs(x), 2)),
    "soft_sign": lambda ctx, g, x: g * (1.5 / (1.0 + lib.abs(3.0 * x)) ** 2),
    "arctan": lambda ctx, g, x: g / (1.0 + lib.square(math.pi * x)),
    "sigmoid_slope": sigmoid_slope,
    "tanh_slope": lambda ctx, g, x: g * (1.0 - lib.tanh(x) ** 2),
    "erf_slope": lambda ctx, g, x: g * (2.0 / math.sqrt(math.pi) * lib.exp(-lib.square(x))),
    "gaussian": lambda ctx, g, x: g * normal(x, 0.0, 0.5),
    "multi_gaussian": multi_gaussian,
    "exponential": lambda ctx, g, x: g * (2.0 * lib.exp(-2.0 * lib.abs(x))),
    "slayer": lambda ctx, g, x: g * lib.exp(-lib.abs(x)),
    "circle": circle,
    "s2nn": s2nn,
    "log_tailed": log_tailed,
    "sign_log_abs": lambda ctx, g, x: g / lib.add(1.0, lib.abs(x)),
    "piecewise_leaky_relu": lambda ctx, g, x: g * lib.where(lib.abs(x) < 1.0, 0.5, 0.01),
    "q_pseudo_spike": lambda ctx, g, x: g * lib.power(1.0 + lib.abs(x), -3.0),
    "leaky_k_relu": lambda ctx, g, x: g * lib.where(x >= 0, 1.0, 0.1),
    "approx_sign": approx_sign,
    "fake_numerical": lambda ctx, g, x: g * lib.minimum(1.0 / lib.abs(x), 0.3),
    "beta_smooth_relu": lambda ctx, g, x: g * lib.sigmoid(10.0 * x),
    "gelu_slope": gelu_slope,
    "clamp_with_grad": clamp_with_grad,
    "learned_step": learned_step,
    "clip_norm": clip_norm,
    "normalize": lambda ctx, g, x: g / (lib.sqrt(lib.sum(lib.square(g))) + 1e-3),
    "clip_rms": clip_rms,
    "centralize": lambda ctx, g, x: g - lib.mean(g, axis=-1, keepdims=True),
    "magnitude_aware_sign": lambda ctx, g, x: (
        g * lib.abs(x).mean(axis=0, keepdims=True) * (lib.abs(x) <= 1.0)
    ),
    "dorefa": dorefa,
    "gumbel_softmax": gumbel_softmax,
}
