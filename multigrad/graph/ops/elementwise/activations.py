"""Activations: what networks apply to each element, some of them with numbers that shape it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..attributes import flag, number, required
from ..numerics import Array, widened, zero_like
from ..properties import BETWEEN_ZERO_AND_ONE
from ..table import Cotangents, function, zero
from .special import erfc

# --- the logistic family -----------------------------------------------------------------------


@widened
def sigmoid(x: Array) -> Array:
    # exp of a non-positive number only, so nothing overflows
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def sigmoid_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * (y * (1.0 - y)),)


@widened
def log_sigmoid(x: Array) -> Array:
    return np.minimum(x, x.dtype.type(0)) - np.log1p(np.exp(-np.abs(x)))


def log_sigmoid_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * xp.sigmoid(-x),)


@widened
def logit(x: Array) -> Array:
    return np.log(x) - np.log1p(-x)


def logit_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct / (x * (1.0 - x)),)


@widened
def silu(x: Array) -> Array:
    return x * sigmoid(x)


def silu_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    s = xp.sigmoid(x)
    return (ct * (s * (1.0 + x * (1.0 - s))),)


@widened
def softplus(x: Array) -> Array:
    return np.maximum(x, x.dtype.type(0)) + np.log1p(np.exp(-np.abs(x)))


def softplus_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * xp.sigmoid(x),)


@widened
def mish(x: Array) -> Array:
    return x * np.tanh(softplus(x))


def mish_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    t = xp.tanh(xp.softplus(x))
    return (ct * (t + x * xp.sigmoid(x) * (1.0 - t * t)),)


SIGMOID = function("sigmoid", sigmoid, sigmoid_vjp, "1 / (1 + exp(-x)).")
LOG_SIGMOID = function("log_sigmoid", log_sigmoid, log_sigmoid_vjp, "log(sigmoid(x)).")
LOGIT = function("logit", logit, logit_vjp, "log(x / (1 - x)).", domain=BETWEEN_ZERO_AND_ONE)
SILU = function("silu", silu, silu_vjp, "x sigmoid(x).")
SOFTPLUS = function("softplus", softplus, softplus_vjp, "log(1 + exp(x)).")
MISH = function("mish", mish, mish_vjp, "x tanh(softplus(x)).")

# --- rectifiers and exponential units ----------------------------------------------------------
# Klambauer et al. (2017), equation 14: the fixed point of mean 0 and variance 1.
SELU_ALPHA = 1.6732632423543772848
SELU_SCALE = 1.0507009873554804934


def relu(x: Array) -> Array:
    return np.maximum(x, zero_like(x))


def relu_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * xp.greater(x, 0),)


def relu6(x: Array) -> Array:
    return np.minimum(np.maximum(x, x.dtype.type(0)), x.dtype.type(6))


def relu6_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * (xp.greater(x, 0) & xp.less(x, 6)),)


@widened
def leaky_relu(x: Array, *, slope: float) -> Array:
    return np.where(x >= 0, x, x * x.dtype.type(slope))


def leaky_relu_vjp(xp: Any, ct: Any, y: Any, x: Any, *, slope: float) -> Cotangents:
    return (ct * xp.where(xp.greater(x, 0), 1.0, slope),)


@widened
def elu(x: Array, *, alpha: float) -> Array:
    return np.where(x > 0, x, x.dtype.type(alpha) * np.expm1(np.minimum(x, 0)))


def elu_vjp(xp: Any, ct: Any, y: Any, x: Any, *, alpha: float) -> Cotangents:
    return (ct * xp.where(xp.greater(x, 0), 1.0, alpha * xp.exp(xp.minimum(x, 0.0))),)


@widened
def celu(x: Array, *, alpha: float) -> Array:
    scale = x.dtype.type(alpha)
    return np.where(x > 0, x, scale * np.expm1(np.minimum(x, 0) / scale))


def celu_vjp(xp: Any, ct: Any, y: Any, x: Any, *, alpha: float) -> Cotangents:
    return (ct * xp.where(xp.greater(x, 0), 1.0, xp.exp(xp.minimum(x, 0.0) / alpha)),)


@widened
def selu(x: Array) -> Array:
    number = x.dtype.type
    below = number(SELU_SCALE * SELU_ALPHA) * np.expm1(np.minimum(x, 0))
    return np.where(x > 0, number(SELU_SCALE) * x, below)


def selu_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    below = SELU_SCALE * SELU_ALPHA * xp.exp(xp.minimum(x, 0.0))
    return (ct * xp.where(xp.greater(x, 0), SELU_SCALE, below),)


@widened
def gelu(x: Array, *, approximate: bool) -> Array:
    one = x.dtype.type
    if approximate:
        inner = one(np.sqrt(2 / np.pi)) * (x + one(0.044715) * x * x * x)
        return x * (one(0.5) * (one(1) + np.tanh(inner)))
    return x * (one(0.5) * erfc(-x * one(np.sqrt(0.5))))


def gelu_vjp(xp: Any, ct: Any, y: Any, x: Any, *, approximate: bool) -> Cotangents:
    """Phi(x) + x phi(x), or the derivative of the tanh form (Hendrycks and Gimpel, 2016)."""
    if approximate:
        scale = math.sqrt(2 / math.pi)
        x = xp.clip(x, -10.0, 10.0)  # t is 1 there in every dtype, and the cube must not overflow
        t = xp.tanh(scale * (x + 0.044715 * x * x * x))
        slope = scale * (1.0 + 3 * 0.044715 * x * x)
        return (ct * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope),)
    cdf = 0.5 * (1.0 + xp.erf(x * math.sqrt(0.5)))
    pdf = xp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return (ct * (cdf + x * pdf),)


RELU = function("relu", relu, relu_vjp, "max(x, 0).", integer=True)
RELU6 = function("relu6", relu6, relu6_vjp, "min(max(x, 0), 6).")
LEAKY_RELU = function(
    "leaky_relu",
    leaky_relu,
    leaky_relu_vjp,
    "x above zero, else slope x.",
    slope=number(0.01, 0.3, 0.0),
)
ALPHA = number(1.0, 1.5, 0.5)
ELU = function("elu", elu, elu_vjp, "x above zero, else alpha (exp(x) - 1).", alpha=ALPHA)
CELU = function(
    "celu", celu, celu_vjp, "x above zero, else alpha (exp(x / alpha) - 1).", alpha=ALPHA
)
SELU = function("selu", selu, selu_vjp, "1.0507 times elu with alpha = 1.67326.")
GELU = function(
    "gelu", gelu, gelu_vjp, "x Phi(x); approximate: the tanh form.", approximate=flag(False)
)

# --- algebraic and piecewise -------------------------------------------------------------------


@widened
def squareplus(x: Array, *, b: float) -> Array:
    # the square is not formed, and below zero the two terms would cancel
    root = np.hypot(x, x.dtype.type(np.sqrt(b)))
    half, size = x.dtype.type(0.5), np.abs(x)
    return np.where(x >= 0, half * x + half * root, x.dtype.type(0.5 * b) / (size + root))


def squareplus_vjp(xp: Any, ct: Any, y: Any, x: Any, *, b: float) -> Cotangents:
    slope = y / xp.hypot(x, math.sqrt(b))
    return (ct * xp.where(xp.equal(x, math.inf), 1.0, slope),)


@widened
def sparse_plus(x: Array) -> Array:
    inside = np.clip(x, -1, 1) + x.dtype.type(1)
    return np.where(x >= 1, x, x.dtype.type(0.25) * inside * inside)


def sparse_plus_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * xp.sparse_sigmoid(x),)


@widened
def sparse_sigmoid(x: Array) -> Array:
    return x.dtype.type(0.5) * (np.clip(x, -1, 1) + x.dtype.type(1))


def sparse_sigmoid_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * (0.5 * xp.less(xp.abs(x), 1.0)),)


@widened
def soft_sign(x: Array) -> Array:
    return x / (1 + np.abs(x))


def soft_sign_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    r = 1.0 / (1.0 + xp.abs(x))
    return (ct * r * r,)


@widened
def tanh_shrink(x: Array) -> Array:
    return x - np.tanh(x)


def tanh_shrink_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * xp.square(xp.tanh(x)),)


@widened
def soft_shrink(x: Array, *, lambd: float) -> Array:
    width = x.dtype.type(lambd)
    inside = (x >= -width) & (x <= width)
    return np.where(inside, x.dtype.type(0), x - np.copysign(width, x))


@widened
def hard_shrink(x: Array, *, lambd: float) -> Array:
    width = x.dtype.type(lambd)
    return np.where((x >= -width) & (x <= width), x.dtype.type(0), x)


def soft_shrink_vjp(xp: Any, ct: Any, y: Any, x: Any, *, lambd: float) -> Cotangents:
    return (ct * xp.greater(xp.abs(x), lambd),)


@widened
def threshold(x: Array, *, threshold: float, default: float) -> Array:
    return np.where(x <= x.dtype.type(threshold), x.dtype.type(default), x)


def threshold_vjp(
    xp: Any, ct: Any, y: Any, x: Any, *, threshold: float, default: float
) -> Cotangents:
    return (ct * xp.greater(x, threshold),)


@widened
def hard_tanh(x: Array, *, min: float, max: float) -> Array:
    return np.minimum(np.maximum(x, x.dtype.type(min)), x.dtype.type(max))


def hard_tanh_vjp(xp: Any, ct: Any, y: Any, x: Any, *, min: float, max: float) -> Cotangents:
    return (ct * (xp.greater(x, min) & xp.less(x, max)),)


@widened
def hard_sigmoid(x: Array) -> Array:
    number = x.dtype.type
    return np.minimum(np.maximum(x + number(3), number(0)), number(6)) / number(6)


def hard_sigmoid_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * (xp.less(xp.abs(x), 3.0) * (1 / 6)),)


@widened
def hard_silu(x: Array) -> Array:
    return x * hard_sigmoid(x)


def hard_silu_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    # (2 x + 3) / 6 inside; limited first, so that nothing overflows outside
    inside = (2.0 * xp.clip(x, -3.0, 3.0) + 3.0) * (1 / 6)
    return (ct * xp.where(xp.less(xp.abs(x), 3.0), inside, 1.0 * xp.greater(x, 0.0)),)


def heaviside(x: Array) -> Array:
    """1 above zero, else 0; NaN gives 0, as `(x > 0)` does."""
    return (x > zero_like(x)).astype(x.dtype)


SQUAREPLUS = function(
    "squareplus",
    squareplus,
    squareplus_vjp,
    "(x + sqrt(x^2 + b)) / 2; the square is not formed.",
    b=number(4.0, 0.0, 1.0),
)
SPARSE_PLUS = function(
    "sparse_plus", sparse_plus, sparse_plus_vjp, "0 below -1, (x + 1)^2 / 4 up to 1, then x."
)
SPARSE_SIGMOID = function(
    "sparse_sigmoid", sparse_sigmoid, sparse_sigmoid_vjp, "(x + 1) / 2 limited to [0, 1]."
)
SOFT_SIGN = function("soft_sign", soft_sign, soft_sign_vjp, "x / (1 + |x|).")
TANH_SHRINK = function("tanh_shrink", tanh_shrink, tanh_shrink_vjp, "x - tanh(x).")
LAMBD = number(0.5, 2.0, 0.0)
SOFT_SHRINK = function(
    "soft_shrink",
    soft_shrink,
    soft_shrink_vjp,
    "x moved by lambd towards zero, zero within lambd of it.",
    lambd=LAMBD,
)
HARD_SHRINK = function(
    "hard_shrink", hard_shrink, soft_shrink_vjp, "x, but zero within lambd of zero.", lambd=LAMBD
)
THRESHOLD = function(
    "threshold",
    threshold,
    threshold_vjp,
    "x above the threshold, else the default; NaN stays.",
    threshold=required(number(0.5, -1.0)),
    default=required(number(20.0, 0.0)),
)
HARD_TANH = function(
    "hard_tanh",
    hard_tanh,
    hard_tanh_vjp,
    "x limited to [min, max]; the slope is zero at both.",
    min=number(-1.0, -2.0),
    max=number(1.0, 0.5),
)
HARD_SIGMOID = function("hard_sigmoid", hard_sigmoid, hard_sigmoid_vjp, "relu6(x + 3) / 6.")
HARD_SILU = function("hard_silu", hard_silu, hard_silu_vjp, "x hard_sigmoid(x).")
HEAVISIDE = function("heaviside", heaviside, zero, "1 above zero, else 0.")
