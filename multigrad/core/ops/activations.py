"""Activation functions of networks, some of them with parameters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..ir.attributes import flag, number, required
from .numerics import Array, widened, zero_like
from .properties import BETWEEN_ZERO_AND_ONE
from .table import Cotangents, composite, function, zero

# --- the logistic family -----------------------------------------------------------------------


@widened
def sigmoid(x: Array) -> Array:
    # exp of a non-positive number only, so nothing overflows
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def log_sigmoid(xp: Any, x: Any) -> Any:
    return xp.minimum(x, 0.0) - xp.log1p(xp.exp(-xp.abs(x)))


def logit(xp: Any, x: Any) -> Any:
    return xp.log(x) - xp.log1p(-x)


def silu(xp: Any, x: Any) -> Any:
    return x * xp.sigmoid(x)


def silu_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    s = xp.sigmoid(x)
    return (ct * (s * (1.0 + x * (1.0 - s))),)


def softplus(xp: Any, x: Any) -> Any:
    return xp.maximum(x, 0.0) + xp.log1p(xp.exp(-xp.abs(x)))


def mish(xp: Any, x: Any) -> Any:
    return x * xp.tanh(xp.softplus(x))


def mish_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    t = xp.tanh(xp.softplus(x))
    return (ct * (t + x * xp.sigmoid(x) * (1.0 - t * t)),)


# By y, not x: the residual is the result, and nothing overflows.
SIGMOID = function("sigmoid", sigmoid, "ct * (y * (1.0 - y))", "1 / (1 + exp(-x)).")
LOG_SIGMOID = composite(log_sigmoid, "ct * xp.sigmoid(-x)", "log(sigmoid(x)).")
LOGIT = composite(logit, "ct / (x * (1.0 - x))", "log(x / (1 - x)).", domain=BETWEEN_ZERO_AND_ONE)
SILU = composite(silu, silu_vjp, "x sigmoid(x).")
SOFTPLUS = composite(softplus, "ct * xp.sigmoid(x)", "log(1 + exp(x)).")
MISH = composite(mish, mish_vjp, "x tanh(softplus(x)).")

# --- rectifiers and exponential units ----------------------------------------------------------
# Klambauer et al. (2017), equation 14: the fixed point of mean 0 and variance 1.
SELU_ALPHA = 1.6732632423543772848
SELU_SCALE = 1.0507009873554804934


def relu(x: Array) -> Array:
    return np.maximum(x, zero_like(x))


def relu6(xp: Any, x: Any) -> Any:
    return xp.clip(x, 0.0, 6.0)


def leaky_relu(xp: Any, x: Any, *, slope: float) -> Any:
    return xp.where(x > 0, x, slope * x)


# For x above 0 the branch not chosen must not overflow: its gradient would be 0 * inf.
def elu(xp: Any, x: Any, *, alpha: float) -> Any:
    return xp.where(x > 0, x, alpha * xp.expm1(xp.minimum(x, 0.0)))


def celu(xp: Any, x: Any, *, alpha: float) -> Any:
    return xp.where(x > 0, x, alpha * xp.expm1(xp.minimum(x, 0.0) / alpha))


def selu(xp: Any, x: Any) -> Any:
    negative = SELU_SCALE * SELU_ALPHA * xp.expm1(xp.minimum(x, 0.0))
    return xp.where(x > 0, SELU_SCALE * x, negative)


def selu_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    slope = SELU_SCALE * SELU_ALPHA * xp.exp(xp.minimum(x, 0.0))
    return (ct * xp.where(xp.greater(x, 0), SELU_SCALE, slope),)


def gelu(xp: Any, x: Any, *, approximate: bool) -> Any:
    if approximate:
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1.0 + xp.tanh(inner))
    # erfc, because 1 + erf(x) cancels far below zero.
    return 0.5 * x * xp.erfc(-math.sqrt(0.5) * x)


def gelu_vjp(xp: Any, ct: Any, y: Any, x: Any, *, approximate: bool) -> Cotangents:
    # Phi(x) + x phi(x), or the derivative of the tanh form (Hendrycks and Gimpel, 2016).
    if approximate:
        scale = math.sqrt(2 / math.pi)
        x = xp.clip(x, -10.0, 10.0)  # t is 1 there in every dtype, and the cube must not overflow
        t = xp.tanh(scale * (x + 0.044715 * x * x * x))
        slope = scale * (1.0 + 3 * 0.044715 * x * x)
        return (ct * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope),)
    cdf = 0.5 * (1.0 + xp.erf(x * math.sqrt(0.5)))
    pdf = xp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return (ct * (cdf + x * pdf),)


RELU = function("relu", relu, "xp.where(xp.greater(x, 0), ct, 0.0)", "max(x, 0).", integer=True)
RELU6 = composite(
    relu6, "xp.where(xp.greater(x, 0) & xp.less(x, 6), ct, 0.0)", "min(max(x, 0), 6).", rounds=False
)
LEAKY_RELU = composite(
    leaky_relu,
    "ct * xp.where(xp.greater(x, 0), 1.0, slope)",
    "x above zero, else slope x.",
    slope=number(0.01, 0.3, 0.0),
)
ALPHA = number(1.0, 1.5, 0.5)
ELU = composite(
    elu,
    "ct * xp.where(xp.greater(x, 0), 1.0, alpha * xp.exp(xp.minimum(x, 0.0)))",
    "x above zero, else alpha (exp(x) - 1).",
    alpha=ALPHA,
)
CELU = composite(
    celu,
    "ct * xp.where(xp.greater(x, 0), 1.0, xp.exp(xp.minimum(x, 0.0) / alpha))",
    "x above zero, else alpha (exp(x / alpha) - 1).",
    alpha=ALPHA,
)
SELU = composite(selu, selu_vjp, "1.0507 times elu with alpha = 1.67326.")
GELU = composite(gelu, gelu_vjp, "x Phi(x); approximate: the tanh form.", approximate=flag(False))

# --- algebraic and piecewise -------------------------------------------------------------------


def squareplus(xp: Any, x: Any, *, b: float) -> Any:
    # The square is not formed, and below zero the two terms would cancel. Each term is halved on
    # its own: XLA adds first and halves then, which overflows.
    half = 0.5 * x
    root = xp.hypot(half, 0.5 * b**0.5)
    # Below zero half of the smallest normal number may be flushed to zero: 0 / 0 for b = 0.
    return xp.where(x >= 0, half + root, 0.5 * b / (xp.abs(x) + 2.0 * root))


def squareplus_vjp(xp: Any, ct: Any, y: Any, x: Any, *, b: float) -> Cotangents:
    slope = y / xp.hypot(x, math.sqrt(b))
    # y / hypot is inf / inf at infinity.
    return (ct * xp.where(xp.equal(x, math.inf), 1.0, slope),)


def sparse_plus(xp: Any, x: Any) -> Any:
    shifted = xp.clip(x, -1.0, 1.0) + 1.0
    return xp.where(x >= 1.0, x, 0.25 * shifted * shifted)


def sparse_sigmoid(xp: Any, x: Any) -> Any:
    return 0.5 * (xp.clip(x, -1.0, 1.0) + 1.0)


def soft_sign(xp: Any, x: Any) -> Any:
    return x / (1.0 + xp.abs(x))


def soft_sign_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    r = 1.0 / (1.0 + xp.abs(x))
    return (ct * r * r,)


def tanh_shrink(xp: Any, x: Any) -> Any:
    return x - xp.tanh(x)


def soft_shrink(xp: Any, x: Any, *, lambd: float) -> Any:
    # With a negative lambd nothing is inside, and all move by its absolute value.
    is_inside = (x >= -lambd) & (x <= lambd)
    return xp.where(is_inside, 0.0, xp.where(x > 0, x - abs(lambd), x + abs(lambd)))


def hard_shrink(xp: Any, x: Any, *, lambd: float) -> Any:
    return xp.where((x >= -lambd) & (x <= lambd), 0.0, x)


def threshold(xp: Any, x: Any, *, threshold: float, default: float) -> Any:
    return xp.where(x <= threshold, default, x)


def hard_tanh(xp: Any, x: Any, *, min: float, max: float) -> Any:
    return xp.clip(x, min, max)


def hard_sigmoid(xp: Any, x: Any) -> Any:
    return xp.clip(x + 3.0, 0.0, 6.0) / 6.0


def hard_silu(xp: Any, x: Any) -> Any:
    return x * (xp.clip(x + 3.0, 0.0, 6.0) / 6.0)  # in this order nothing overflows


def hard_silu_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    # (2 x + 3) / 6 inside; limited first, so that nothing overflows outside
    slope = (2.0 * xp.clip(x, -3.0, 3.0) + 3.0) * (1 / 6)
    return (ct * xp.where(xp.less(xp.abs(x), 3.0), slope, 1.0 * xp.greater(x, 0.0)),)


def heaviside(x: Array) -> Array:
    # Not np.heaviside: NaN gives 0, as `(x > 0)` does.
    return (x > zero_like(x)).astype(x.dtype)


SQUAREPLUS = composite(
    squareplus,
    squareplus_vjp,
    "(x + sqrt(x^2 + b)) / 2; the square is not formed.",
    b=number(4.0, 0.0, 1.0),
)
SPARSE_PLUS = composite(
    sparse_plus, "ct * xp.sparse_sigmoid(x)", "0 below -1, (x + 1)^2 / 4 up to 1, then x."
)
SPARSE_SIGMOID = composite(
    sparse_sigmoid, "ct * (0.5 * xp.less(xp.abs(x), 1.0))", "(x + 1) / 2 limited to [0, 1]."
)
SOFT_SIGN = composite(soft_sign, soft_sign_vjp, "x / (1 + |x|).")
TANH_SHRINK = composite(tanh_shrink, "ct * xp.square(xp.tanh(x))", "x - tanh(x).")
LAMBD = number(0.5, 2.0, 0.0)
SOFT_SHRINK = composite(
    soft_shrink,
    "xp.where(xp.greater(xp.abs(x), lambd), ct, 0.0)",
    "x moved by lambd towards zero, zero within lambd of it.",
    lambd=LAMBD,
)
HARD_SHRINK = composite(
    hard_shrink,
    "xp.where(xp.greater(xp.abs(x), lambd), ct, 0.0)",
    "x, but zero within lambd of zero.",
    lambd=LAMBD,
)
THRESHOLD = composite(
    threshold,
    "xp.where(xp.greater(x, threshold), ct, 0.0)",
    "x above the threshold, else the default; NaN stays.",
    threshold=required(number(0.5, -1.0)),
    default=required(number(20.0, 0.0)),
)
HARD_TANH = composite(
    hard_tanh,
    "xp.where(xp.greater(x, min) & xp.less(x, max), ct, 0.0)",
    "x limited to [min, max]; the slope is zero at both.",
    min=number(-1.0, -2.0),
    max=number(1.0, 0.5),
    rounds=False,
)
HARD_SIGMOID = composite(
    hard_sigmoid, "xp.where(xp.less(xp.abs(x), 3.0), ct * (1 / 6), 0.0)", "relu6(x + 3) / 6."
)
HARD_SILU = composite(hard_silu, hard_silu_vjp, "x hard_sigmoid(x).")
HEAVISIDE = function("heaviside", heaviside, zero, "1 above zero, else 0.")
