"""Activation functions of networks, those of `xg.activations()` above all."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..ir.op import flag, number
from .numerics import Array, widened, zero_like
from .table import Cotangents, composite, function, zero

# --- the logistic family -----------------------------------------------------------------------


@widened
def sigmoid(x: Array) -> Array:
    # exp of a non-positive number only, so nothing overflows
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def silu(xp: Any, x: Any) -> Any:
    return x * xp.sigmoid(x)


def silu_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    s = xp.sigmoid(x)
    return (ct * (s * (1.0 + x * (1.0 - s))),)


def softplus(xp: Any, x: Any) -> Any:
    return xp.maximum(x, 0.0) + xp.log1p(xp.exp(-xp.abs(x)))


# By y, not x: the residual is the result, and nothing overflows.
SIGMOID = function("sigmoid", sigmoid, "ct * (y * (1.0 - y))", "1 / (1 + exp(-x)).")
SILU = composite(silu, silu_vjp, "x sigmoid(x).")
SOFTPLUS = composite(softplus, "ct * xp.sigmoid(x)", "log(1 + exp(x)).")

# --- rectifiers and exponential units ----------------------------------------------------------


def relu(x: Array) -> Array:
    return np.maximum(x, zero_like(x))


def relu6(xp: Any, x: Any) -> Any:
    return xp.clip(x, 0.0, 6.0)


def leaky_relu(xp: Any, x: Any, *, slope: float) -> Any:
    return xp.where(x > 0, x, slope * x)


# For x above 0 the branch not chosen must not overflow: its gradient would be 0 * inf.
def elu(xp: Any, x: Any, *, alpha: float) -> Any:
    return xp.where(x > 0, x, alpha * xp.expm1(xp.minimum(x, 0.0)))


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
GELU = composite(gelu, gelu_vjp, "x Phi(x); approximate: the tanh form.", approximate=flag(False))

# --- algebraic and piecewise -------------------------------------------------------------------


def heaviside(x: Array) -> Array:
    # Not np.heaviside: NaN gives 0, as `(x > 0)` does.
    return (x > zero_like(x)).astype(x.dtype)


HEAVISIDE = function("heaviside", heaviside, zero, "1 above zero, else 0.")
