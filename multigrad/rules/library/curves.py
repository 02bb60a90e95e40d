"""The curves of surrogate gradients: what each multiplies a gradient by, as a function of `tin`.

Several rules share one, with edges and defaults of their own. Each is written so that no finite
input overflows to NaN or infinity in any dtype: an intermediate infinity ends as a zero.
"""

from __future__ import annotations

import math
from typing import Any

from ...trace.xp import all as xp

Tensor = Any
Number = Any


def cauchy(x: Tensor, height: Number, slope: Number) -> Tensor:
    """height / (1 + (slope * x)^2)."""
    u = slope * x
    return height / (1.0 + u * u)


def arctan(x: Tensor, alpha: Number) -> Tensor:
    """(alpha / 2) / (1 + (pi/2 * alpha * x)^2)."""
    return cauchy(x, 0.5 * alpha, 0.5 * math.pi * alpha)


def fast_sigmoid(x: Tensor, slope: Number) -> Tensor:
    """1 / (1 + slope * |x|)^2."""
    u = 1.0 / (1.0 + slope * abs(x))
    return u * u


def sigmoid(x: Tensor, alpha: Number) -> Tensor:
    """alpha * s(alpha x) * s(-alpha x), which is alpha s (1 - s) and neither overflows nor
    cancels.
    """
    u = alpha * x
    return alpha * (xp.sigmoid(u) * xp.sigmoid(-u))


def tanh(x: Tensor, slope: Number) -> Tensor:
    """1 - tanh(slope * x)^2, written as 4 s(2u) s(-2u)."""
    return sigmoid(x * slope, 2.0) * 2.0


def triangle(x: Tensor, height: Number, slope: Number) -> Tensor:
    """height * max(0, 1 - slope * |x|)."""
    return height * xp.maximum(1.0 - slope * abs(x), 0.0)


def bell(x: Tensor, height: Number, slope: Number) -> Tensor:
    """height * exp(-(slope * x)^2)."""
    u = slope * x
    return height * xp.exp(-(u * u))


def erf(x: Tensor, alpha: Number) -> Tensor:
    """alpha / sqrt(pi) * exp(-(alpha * x)^2)."""
    return bell(x, alpha * math.pi**-0.5, alpha)


def normal(x: Tensor, mean: Number, sigma: Number) -> Tensor:
    """The density of a normal distribution."""
    u = (x - mean) / sigma
    return xp.exp(-0.5 * (u * u)) / (sigma * math.sqrt(2.0 * math.pi))


def multi_gaussian(x: Tensor, mean: Number, sigma: Number, h: Number, s: Number) -> Tensor:
    """(1 + h) N(x; mean, sigma) - h N(x; sigma, s sigma) - h N(x; -sigma, s sigma)."""
    sides = normal(x, sigma, s * sigma) + normal(x, -sigma, s * sigma)
    return (1.0 + h) * normal(x, mean, sigma) - h * sides


def exponential(x: Tensor, height: Number, slope: Number) -> Tensor:
    """height * exp(-slope * |x|)."""
    return height * xp.exp(-(slope * abs(x)))


def periodic_exponential(x: Tensor, height: Number, width: Number, threshold: Number) -> Tensor:
    """height * exp(-|u| / width): u = x below zero; from there on a sawtooth through zero at each
    multiple of the threshold, from -threshold to threshold.
    """
    past = xp.remainder(x, threshold)
    teeth = 2.0 * xp.minimum(past, threshold - past)
    return height * xp.exp(-(xp.where(x < 0.0, -x, teeth) / width))


def circle(x: Tensor, alpha: Number) -> Tensor:
    """(1 + (x / alpha)^2)^(-3/2), which is alpha^3 / (alpha^2 + x^2)^(3/2)."""
    u = x / alpha
    return (1.0 + u * u) ** -1.5


def nonzero_sign_log(x: Tensor, alpha: Number) -> Tensor:
    """1 / (1 / alpha + |x|)."""
    return 1.0 / (1.0 / alpha + abs(x))


def squarewave_fourier(x: Tensor, terms: int, period: Number) -> Tensor:
    """(4 / period) * sum of cos((2i - 1) 2 pi x / period) for i in 1..terms."""
    # The angle of a large x overflows in 16 bits; its turn does not.
    angle = (2.0 * math.pi) * (xp.remainder(x, period) / period)
    waves = x * 0.0
    for i in range(1, terms + 1):
        waves = waves + xp.cos((2.0 * i - 1.0) * angle)
    return (4.0 / period) * waves


def s2nn(x: Tensor, alpha: Number, beta: Number) -> Tensor:
    """alpha s(alpha x) (1 - s(alpha x)) below zero, beta / (x + 1) from there on."""
    above = beta / (xp.maximum(x, 0.0) + 1.0)
    return xp.where(x < 0.0, sigmoid(x, alpha), above)


def q_pseudo_spike(x: Tensor, alpha: Number, width: Number) -> Tensor:
    """(1 + 2 |x| / width)^-alpha.

    The power raises the rounding of its sum to the alpha; what the sum has lost is given back.
    """
    u = (2.0 / width) * abs(x)
    total = 1.0 + u
    lost = xp.where(u > 1.0, 1.0 - (total - u), u - (total - 1.0))
    lost = xp.where(total < math.inf, lost / total, 0.0)
    return total**-alpha * xp.exp(-(alpha * lost))


def log_tailed_relu(x: Tensor, alpha: Number) -> Tensor:
    """1 / x above 1, 1 for 0 < x <= 1, alpha from zero down."""
    return xp.where(x > 0.0, 1.0 / xp.maximum(x, 1.0), alpha)


def numerical(x: Tensor, alpha: Number) -> Tensor:
    """min(1 / |x|, alpha), alpha at both zeros."""
    is_near = abs(x) * alpha <= 1.0
    return xp.where(is_near, alpha, 1.0 / xp.where(is_near, 1.0, abs(x)))


def swish_sign(x: Tensor, beta: Number) -> Tensor:
    """beta * (2 - u tanh(u/2)) / (1 + cosh(u)) with u = beta x."""
    u = xp.minimum(beta * abs(x), 1000.0)  # from there on it is 0 in every dtype
    slope = xp.sigmoid(u) * xp.sigmoid(-u)
    return (2.0 * beta) * (slope * (2.0 - u * xp.tanh(0.5 * u)))


def dorefa_weights(grad_out: Tensor, x: Tensor) -> Tensor:
    """grad_out * (1 - tanh(x)^2) / max|tanh(x)| with a constant maximum, 0 where that is 0."""
    largest = xp.stop_gradient(xp.norm(xp.tanh(x), ord=math.inf))
    is_zero = largest == 0.0
    # Divided last: the inverse of a subnormal maximum is infinite.
    return grad_out * xp.where(is_zero, 0.0, tanh(x, 1.0)) / xp.where(is_zero, 1.0, largest)
