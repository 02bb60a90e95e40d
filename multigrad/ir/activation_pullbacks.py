"""The VJP of each activation; see `pullbacks.py` for how they are written."""

from __future__ import annotations

import math
from typing import Any

from .activation_meaning import SELU_ALPHA, SELU_SCALE

Cotangents = tuple[Any, ...]


def zero(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    """Piecewise constant: the derivative is zero wherever it exists."""
    return (None,)


def sigmoid(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * (y * (1.0 - y)),)


def log_sigmoid(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * xp.sigmoid(-x),)


def logit(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct / (x * (1.0 - x)),)


def relu(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * xp.greater(x, 0),)


def relu6(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * (xp.greater(x, 0) & xp.less(x, 6)),)


def leaky_relu(xp: Any, ct: Any, y: Any, x: Any, *, slope: float) -> Cotangents:
    return (ct * xp.where(xp.greater(x, 0), 1.0, slope),)


def elu(xp: Any, ct: Any, y: Any, x: Any, *, alpha: float) -> Cotangents:
    return (ct * xp.where(xp.greater(x, 0), 1.0, alpha * xp.exp(xp.minimum(x, 0.0))),)


def celu(xp: Any, ct: Any, y: Any, x: Any, *, alpha: float) -> Cotangents:
    return (ct * xp.where(xp.greater(x, 0), 1.0, xp.exp(xp.minimum(x, 0.0) / alpha)),)


def selu(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    below = SELU_SCALE * SELU_ALPHA * xp.exp(xp.minimum(x, 0.0))
    return (ct * xp.where(xp.greater(x, 0), SELU_SCALE, below),)


def gelu(xp: Any, ct: Any, y: Any, x: Any, *, approximate: bool) -> Cotangents:
    """Exact: Phi(x) + x phi(x). Approximate: the derivative of the tanh form (Hendrycks and Gimpel, 2016)."""
    if approximate:
        scale = math.sqrt(2 / math.pi)
        x = xp.clip(x, -10.0, 10.0)  # t is 1 there in every dtype, and the cube must not overflow
        t = xp.tanh(scale * (x + 0.044715 * x * x * x))
        slope = scale * (1.0 + 3 * 0.044715 * x * x)
        return (ct * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope),)
    cdf = 0.5 * (1.0 + xp.erf(x * math.sqrt(0.5)))
    pdf = xp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return (ct * (cdf + x * pdf),)


def silu(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    s = xp.sigmoid(x)
    return (ct * (s * (1.0 + x * (1.0 - s))),)


def mish(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    t = xp.tanh(xp.softplus(x))
    return (ct * (t + x * xp.sigmoid(x) * (1.0 - t * t)),)


def softplus(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * xp.sigmoid(x),)


def squareplus(xp: Any, ct: Any, y: Any, x: Any, *, b: float) -> Cotangents:
    slope = y / xp.hypot(x, math.sqrt(b))
    return (ct * xp.where(xp.equal(x, math.inf), 1.0, slope),)


def sparse_plus(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * xp.sparse_sigmoid(x),)


def sparse_sigmoid(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * (0.5 * xp.less(xp.abs(x), 1.0)),)


def soft_sign(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    r = 1.0 / (1.0 + xp.abs(x))
    return (ct * r * r,)


def tanh_shrink(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * xp.square(xp.tanh(x)),)


def soft_shrink(xp: Any, ct: Any, y: Any, x: Any, *, lambd: float) -> Cotangents:
    return (ct * xp.greater(xp.abs(x), lambd),)


hard_shrink = soft_shrink


def threshold(
    xp: Any, ct: Any, y: Any, x: Any, *, threshold: float, default: float
) -> Cotangents:  # fmt: skip
    return (ct * xp.greater(x, threshold),)


def hard_tanh(xp: Any, ct: Any, y: Any, x: Any, *, min: float, max: float) -> Cotangents:
    return (ct * (xp.greater(x, min) & xp.less(x, max)),)


def hard_sigmoid(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * (xp.less(xp.abs(x), 3.0) * (1 / 6)),)


def hard_silu(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    # (2 x + 3) / 6 inside; limited first, so that nothing overflows outside
    inside = (2.0 * xp.clip(x, -3.0, 3.0) + 3.0) * (1 / 6)
    return (ct * xp.where(xp.less(xp.abs(x), 3.0), inside, 1.0 * xp.greater(x, 0.0)),)
