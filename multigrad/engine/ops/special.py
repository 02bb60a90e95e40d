"""Inverse error functions, the normal distribution, gamma functions, Bessel functions, and sinc."""

from __future__ import annotations

import math
from typing import Any

from ...core.ir.op import Op, count
from ...core.ops.properties import ABOVE_ZERO, BETWEEN_ZERO_AND_ONE, WITHIN_ONE
from ...core.ops.table import Cotangents, composite, function, ufunc
from . import special_functions
from .special_functions import late_from_scipy

ROOT_TAU = math.sqrt(2 * math.pi)
MILLS_FROM = 8.0  # beyond this |x|, the inverse Mills ratio comes from a continued fraction


def ours(name: str, vjp: Any, doc: str, **fields: Any) -> Op:
    """Declare an op whose NumPy function is that of its name in `special_functions`."""
    return function(name, getattr(special_functions, name), vjp, doc, **fields)


def log_ndtr_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    # phi(x) / Phi(x); in the left tail, where that quotient cancels, by `inverse_mills`.
    tail = inverse_mills(xp.maximum(-x, MILLS_FROM))
    x_near = xp.maximum(x, -MILLS_FROM)
    quotient = xp.exp(-0.5 * x_near * x_near - xp.log_ndtr(x_near)) * (1 / ROOT_TAU)
    return (ct * xp.where(xp.less(x, -MILLS_FROM), tail, quotient),)


def ndtr(xp: Any, x: Any) -> Any:
    return 0.5 * xp.erfc(-math.sqrt(0.5) * x)


def log_ndtr(xp: Any, x: Any) -> Any:
    # Three ranges, each by a form that does not cancel there.
    middle = xp.log(0.5 * xp.erfc(-math.sqrt(0.5) * xp.clip(x, -MILLS_FROM, 1.0)))
    right = xp.log1p(-0.5 * xp.erfc(math.sqrt(0.5) * xp.maximum(x, 1.0)))
    mills = inverse_mills(xp.maximum(-x, MILLS_FROM))
    left = -0.5 * x * x - xp.log(mills * ROOT_TAU)
    return xp.where(x < -MILLS_FROM, left, xp.where(x > 1.0, right, middle))


def inverse_mills(t: Any) -> Any:
    """Return phi(t) / Phi(-t) from MILLS_FROM on, by Laplace's continued fraction."""
    fraction = t
    # 14 levels reach float64 from MILLS_FROM on.
    for k in range(14, 0, -1):
        fraction = t + k / fraction
    return fraction


ERFINV = ours(
    "erfinv",
    "ct * (math.sqrt(math.pi) / 2 * xp.exp(y * y))",
    "The inverse of erf.",
    domain=WITHIN_ONE,
)
NDTR = ours(
    "ndtr",
    "ct * (xp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi)))",
    "The normal distribution function Phi.",
    made_of=ndtr,
)
NDTRI = ours(
    "ndtri",
    "ct * (math.sqrt(2 * math.pi) * xp.exp(0.5 * y * y))",
    "The inverse of ndtr.",
    domain=BETWEEN_ZERO_AND_ONE,
)
LOG_NDTR = ours("log_ndtr", log_ndtr_vjp, "log(ndtr(x)).", made_of=log_ndtr)


def digamma_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    # Trigamma; below zero by reflection: (pi / sin(pi x))^2 - trigamma(1 - x).
    is_below = xp.less(x, 0)
    trigamma = xp.polygamma(1, xp.where(is_below, 1.0 - x, x))
    distance = xp.where(is_below, x - xp.round(x), 0.5)  # from the nearest pole, exactly
    reflection_term = xp.square(math.pi / xp.sin(math.pi * distance))
    return (ct * xp.where(is_below, reflection_term - trigamma, trigamma),)


LGAMMA = ours("lgamma", "ct * xp.digamma(x)", "log |gamma(x)|.")
DIGAMMA = ours("digamma", digamma_vjp, "The derivative of lgamma; NaN at its poles but zero.")
POLYGAMMA = ours(
    "polygamma",
    "ct * xp.polygamma(n + 1, x)",
    "The n-th derivative of digamma, n at least 1; NaN below zero.",
    n=count(1, 2),
    composed=True,
    domain=ABOVE_ZERO,
)


def i1e_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    # i0e(x) - i1e(x) (sign(x) + 1 / x), which is 1/2 - |x| + 15/16 x^2 near zero.
    size = xp.abs(x)
    is_near = xp.less(size, 1e-7)  # before the quotient meets subnormal numbers
    slope = xp.i0e(x) - xp.sign(x) * y - y / xp.where(is_near, 1.0, x)
    return (ct * xp.where(is_near, 0.5 - size + 0.9375 * size * size, slope),)


I0E = ufunc(
    late_from_scipy("i0e"),
    "ct * (xp.i1e(x) - xp.sign(x) * y)",
    "exp(-|x|) I0(x), the Bessel function scaled.",
)
I1E = ufunc(late_from_scipy("i1e"), i1e_vjp, "exp(-|x|) I1(x), the Bessel function scaled.")

# Below SINC_NEAR the quotient cancels; SINC_TERMS terms of the series give float64 accuracy there.
SINC_NEAR, SINC_TERMS = 0.3, 9


def sinc(xp: Any, x: Any) -> Any:
    is_zero = xp.equal(x, 0)
    angle = math.pi * xp.where(is_zero, 1.0, x)
    return xp.where(is_zero, 1.0, xp.sin(angle) / angle)


def sinc_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    # (cos(pi x) - sinc(x)) / x, near zero by its series.
    is_near = xp.less(xp.abs(x), SINC_NEAR)
    near = xp.where(is_near, x, 0.0)
    square, series = near * near, 0.0
    for k in range(SINC_TERMS, 0, -1):
        term = (-1) ** k * 2 * k * math.pi ** (2 * k) / math.factorial(2 * k + 1)
        series = term + square * series
    far = xp.where(is_near, 1.0, x)
    return (ct * xp.where(is_near, near * series, (xp.cos(math.pi * far) - xp.sinc(far)) / far),)


SINC = composite(sinc, sinc_vjp, "sin(pi x) / (pi x), and 1 at zero.")
