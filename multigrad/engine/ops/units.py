"""Functions of networks that no activation and no rule of the library has: other units, gates, the
softmax family; and products with logarithms, angles in degrees, what lies between two numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...core.ir.op import AXIS, LAST_AXES, kept, number, required, reshaped
from ...core.ops.activations import ALPHA
from ...core.ops.numerics import Array, Axis, wide, widened
from ...core.ops.properties import (
    ABOVE_MINUS_ONE,
    ABOVE_ZERO,
    BETWEEN_ZERO_AND_ONE,
    REALS,
    in_ends,
    linear,
)
from ...core.ops.reductions import over, reduction, spread
from ...core.ops.table import Composed, Cotangents, composite, op, ufunc
from .indexing import halved

# --- logarithms, angles, numbers between others ---------------------------------------------------


def xlogy(xp: Any, a: Any, b: Any) -> Any:
    # 0 log(0) is 0, but NaN propagates.
    is_zero = xp.equal(a, 0) & ~xp.isnan(b)
    return xp.where(is_zero, 0.0, a * xp.log(xp.where(is_zero, 1.0, b)))


def xlogy_vjp(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    is_zero = xp.equal(a, 0)
    # A zero cotangent stays zero where the logarithm is not defined.
    by_a = xp.xlogy(ct, xp.where(is_zero & xp.less_equal(b, 0), 1.0, b))
    return by_a, ct * xp.where(is_zero, 0.0, a / xp.where(is_zero, 1.0, b))


def xlog1py(xp: Any, a: Any, b: Any) -> Any:
    is_zero = xp.equal(a, 0) & ~xp.isnan(b)
    return xp.where(is_zero, 0.0, a * xp.log1p(xp.where(is_zero, 0.0, b)))


def xlog1py_vjp(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    is_zero = xp.equal(a, 0)
    by_a = xp.xlog1py(ct, xp.where(is_zero & xp.less_equal(b, -1), 0.0, b))
    return by_a, ct * xp.where(is_zero, 0.0, a / xp.where(is_zero, 1.0, 1.0 + b))


def deg2rad(xp: Any, x: Any) -> Any:
    return x * (math.pi / 180)


def rad2deg(xp: Any, x: Any) -> Any:
    return x * (180 / math.pi)


def lerp(xp: Any, a: Any, b: Any, weight: Any) -> Any:
    span = b - a  # from its nearer end, as torch goes: at 1 it is there
    from_a, from_b = a + weight * span, b - (1.0 - weight) * span
    if isinstance(weight, int | float):
        return from_a if abs(weight) < 0.5 else from_b
    return xp.where(xp.abs(weight) < 0.5, from_a, from_b)


XLOGY = composite(
    xlogy, xlogy_vjp, "a log(b); zero where a is zero.", "a b", domain=(REALS, ABOVE_ZERO)
)
XLOG1PY = composite(
    xlog1py,
    xlog1py_vjp,
    "a log(1 + b); zero where a is zero.",
    "a b",
    domain=(REALS, ABOVE_MINUS_ONE),
)


DEG2RAD = ufunc(wide(np.deg2rad), None, "Degrees in radians.", degree=linear, made_of=deg2rad)
RAD2DEG = ufunc(wide(np.rad2deg), None, "Radians in degrees.", degree=linear, made_of=rad2deg)
LERP = composite(
    lerp,
    "ct * (1.0 - weight), ct * weight, ct * (end - start)",
    "start + weight (end - start).",
    "start end weight",
    degree=in_ends,
)

# --- exponential and logistic units ---------------------------------------------------------------
# Klambauer et al. (2017), equation 14: the fixed point of mean 0 and variance 1.
SELU_ALPHA = 1.6732632423543772848
SELU_SCALE = 1.0507009873554804934


def logit(xp: Any, x: Any) -> Any:
    return xp.log(x) - xp.log1p(-x)


def mish(xp: Any, x: Any) -> Any:
    return x * xp.tanh(xp.softplus(x))


def mish_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    t = xp.tanh(xp.softplus(x))
    return (ct * (t + x * xp.sigmoid(x) * (1.0 - t * t)),)


def celu(xp: Any, x: Any, *, alpha: float) -> Any:
    return xp.where(x > 0, x, alpha * xp.expm1(xp.minimum(x, 0.0) / alpha))


def selu(xp: Any, x: Any) -> Any:
    negative = SELU_SCALE * SELU_ALPHA * xp.expm1(xp.minimum(x, 0.0))
    return xp.where(x > 0, SELU_SCALE * x, negative)


def selu_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    slope = SELU_SCALE * SELU_ALPHA * xp.exp(xp.minimum(x, 0.0))
    return (ct * xp.where(xp.greater(x, 0), SELU_SCALE, slope),)


def log_sigmoid(xp: Any, x: Any) -> Any:
    return xp.minimum(x, 0.0) - xp.log1p(xp.exp(-xp.abs(x)))


LOG_SIGMOID = composite(log_sigmoid, "ct * xp.sigmoid(-x)", "log(sigmoid(x)).")
LOGIT = composite(logit, "ct / (x * (1.0 - x))", "log(x / (1 - x)).", domain=BETWEEN_ZERO_AND_ONE)
MISH = composite(mish, mish_vjp, "x tanh(softplus(x)).")
CELU = composite(
    celu,
    "ct * xp.where(xp.greater(x, 0), 1.0, xp.exp(xp.minimum(x, 0.0) / alpha))",
    "x above zero, else alpha (exp(x / alpha) - 1).",
    alpha=ALPHA,
)
SELU = composite(selu, selu_vjp, "1.0507 times elu with alpha = 1.67326.")

# --- algebraic and piecewise units ----------------------------------------------------------------


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

# --- gates ----------------------------------------------------------------------------------------


def gated_half(xp: Any, x: Any, *, axis: int) -> Any:
    first, second = (xp.half(x, axis=axis, position=i) for i in (0, 1))
    return first * xp.sigmoid(second)


def glu_vjp(xp: Any, ct: Any, y: Any, x: Any, *, axis: int) -> Cotangents:
    first, second = xp.half(x, 0, axis=axis), xp.half(x, 1, axis=axis)
    gate = xp.sigmoid(second)
    return (xp.concatenate((ct * gate, ct * first * gate * xp.sigmoid(-second)), axis=axis),)


GLU = op(
    "glu",
    "x",
    axis=AXIS,
    numpy=Composed(gated_half),
    vjp=glu_vjp,
    result=reshaped,
    shape_of=halved,
    doc="The first half along an axis times the sigmoid of the second.",
)

# --- the softmax family ---------------------------------------------------------------------------


@widened
def logsumexp(x: Array, *, axis: Axis, keepdims: bool) -> Array:
    axis = over(x, axis)
    # Shifted by the largest, so that nothing overflows; -inf if there are no elements.
    largest = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(largest), largest, x.dtype.type(0))
    total = np.log(np.sum(np.exp(x - shift), axis=axis, keepdims=True)) + shift
    return total if keepdims else np.squeeze(total, axis=axis)


def logsumexp_vjp(xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool) -> Cotangents:
    # Zero where everything is -inf; softmax would be NaN there.
    share = xp.softmax(x, axis=axis)
    is_infinite = spread(xp, xp.equal(y, -math.inf) * 1.0, x, axis, keepdims)
    share = xp.where(xp.equal(is_infinite, 1), 0.0, share)
    return (share * spread(xp, ct, x, axis, keepdims),)


@widened
def softmax(x: Array, *, axis: Axis) -> Array:
    axis = over(x, axis)
    powers = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    return powers / np.sum(powers, axis=axis, keepdims=True)


@widened
def log_softmax(x: Array, *, axis: Axis) -> Array:
    axis = over(x, axis)
    centered = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    return centered - np.log(np.sum(np.exp(centered), axis=axis, keepdims=True))


LOGSUMEXP = reduction("logsumexp", logsumexp, logsumexp_vjp, "The log of the sum of exponentials.")
SHARES: dict[str, Any] = {"result": kept, "axis": LAST_AXES}
SOFTMAX = op(
    "softmax",
    "x",
    numpy=softmax,
    vjp="y * (ct - xp.sum(ct * y, axis=axis, keepdims=True))",
    doc="Exponentials divided by their sum.",
    **SHARES,
)
LOG_SOFTMAX = op(
    "log_softmax",
    "x",
    numpy=log_softmax,
    vjp="ct - xp.softmax(x, axis=axis) * xp.sum(ct, axis=axis, keepdims=True)",
    doc="The log of softmax.",
    **SHARES,
)
