"""The rules of `formulas.py` that operators, `abs`, `min` and `max` can express, without any
library.
"""

from __future__ import annotations

import math
from typing import Any

Array = Any


def straight_through(ctx, grad_out: Array, tin: Array) -> Array:
    return +grad_out


def gradient_reversal(ctx, grad_out: Array, tin: Array) -> Array:
    return -grad_out


def gradient_scale(ctx, grad_out: Array, tin: Array) -> Array:
    return 0.25 * grad_out


def clip_value(ctx, grad_out: Array, tin: Array) -> Array:
    return max(min(grad_out, 0.5), -0.5)


def deconvnet(ctx, grad_out: Array, tin: Array) -> Array:
    return max(grad_out, 0.0)


def guided_backprop(ctx, grad_out: Array, tin: Array) -> Array:
    return max(grad_out, 0.0) * (tin > 0)


def relu_mask(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (tin > 0)


def clipped_straight_through(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (abs(tin) <= 1.0)


def rectangular(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * ((tin >= -0.5) & (tin <= 0.5))


def boxcar(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (0.5 * (abs(tin) < 1.0))


def triangular(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * max(1.0 - abs(tin), 0.0)


def scaled_triangle(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (0.3 * max(1.0 - abs(tin), 0.0))


def fast_sigmoid(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out / (1.0 + 25.0 * abs(tin)) ** 2


def superspike(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out / (1.0 + 100.0 * abs(tin)) ** 2


def soft_sign(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (1.5 / (1.0 + abs(3.0 * tin)) ** 2)


def arctan(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out / (1.0 + (math.pi * tin) ** 2)


def circle(ctx, grad_out: Array, tin: Array) -> Array:
    r = 4.0 + tin**2
    return grad_out * (8.0 / (r * r**0.5))


def sign_log_abs(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out / (1.0 + abs(tin))


def piecewise_leaky_relu(ctx, grad_out: Array, tin: Array) -> Array:
    inside = abs(tin) < 1.0
    return grad_out * (0.5 * inside + 0.01 * ~inside)


def q_pseudo_spike(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (1.0 + abs(tin)) ** -3.0


def leaky_k_relu(ctx, grad_out: Array, tin: Array) -> Array:
    above = tin >= 0
    return grad_out * (1.0 * above + 0.1 * ~above)


def fake_numerical(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * min(1.0 / abs(tin), 0.3)
