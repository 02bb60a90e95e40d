"""The rules of `formulas.py` that operators, `abs`, `min` and `max` can express, without any
library.
"""

from __future__ import annotations

import math
from typing import Any

Array = Any


def circle(ctx, grad_out: Array, tin: Array) -> Array:
    r = 4.0 + tin**2
    return grad_out * (8.0 / (r * r**0.5))


def piecewise_leaky_relu(ctx, grad_out: Array, tin: Array) -> Array:
    inside = abs(tin) < 1.0
    return grad_out * (0.5 * inside + 0.01 * ~inside)


def leaky_k_relu(ctx, grad_out: Array, tin: Array) -> Array:
    above = tin >= 0
    return grad_out * (1.0 * above + 0.1 * ~above)


RULES = {
    "straight_through": lambda ctx, g, x: +g,
    "gradient_reversal": lambda ctx, g, x: -g,
    "gradient_scale": lambda ctx, g, x: 0.25 * g,
    "clip_value": lambda ctx, g, x: max(min(g, 0.5), -0.5),
    "deconvnet": lambda ctx, g, x: max(g, 0.0),
    "guided_backprop": lambda ctx, g, x: max(g, 0.0) * (x > 0),
    "relu_mask": lambda ctx, g, x: g * (x > 0),
    "clipped_straight_through": lambda ctx, g, x: g * (abs(x) <= 1.0),
    "rectangular": lambda ctx, g, x: g * ((x >= -0.5) & (x <= 0.5)),
    "boxcar": lambda ctx, g, x: g * (0.5 * (abs(x) < 1.0)),
    "triangular": lambda ctx, g, x: g * max(1.0 - abs(x), 0.0),
    "scaled_triangle": lambda ctx, g, x: g * (0.3 * max(1.0 - abs(x), 0.0)),
    "fast_sigmoid": lambda ctx, g, x: g / (1.0 + 25.0 * abs(x)) ** 2,
    "superspike": lambda ctx, g, x: g / (1.0 + 100.0 * abs(x)) ** 2,
    "soft_sign": lambda ctx, g, x: g * (1.5 / (1.0 + abs(3.0 * x)) ** 2),
    "arctan": lambda ctx, g, x: g / (1.0 + (math.pi * x) ** 2),
    "circle": circle,
    "sign_log_abs": lambda ctx, g, x: g / (1.0 + abs(x)),
    "piecewise_leaky_relu": piecewise_leaky_relu,
    "q_pseudo_spike": lambda ctx, g, x: g * (1.0 + abs(x)) ** -3.0,
    "leaky_k_relu": leaky_k_relu,
    "fake_numerical": lambda ctx, g, x: g * min(1.0 / abs(x), 0.3),
}
