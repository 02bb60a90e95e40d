"""Exponentials, logarithms, trigonometric, hyperbolic and error functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from .numerics import erf, erfc, wide
from .properties import ABOVE_MINUS_ONE, ABOVE_ONE, ABOVE_ZERO, WITHIN_ONE
from .table import function, ufunc


def logaddexp(xp: Any, a: Any, b: Any) -> Any:
    # Equal operands have no gap, two infinities neither, whose difference is NaN.
    gap = xp.where(xp.equal(a, b), 0.0, -xp.abs(a - b))
    return xp.maximum(a, b) + xp.log1p(xp.exp(gap))


EXP = ufunc(np.exp, "ct * y", "e to the power x.")
EXPM1 = ufunc(np.expm1, "ct * xp.exp(x)", "exp(x) - 1, accurate near zero.")
EXP2 = ufunc(wide(np.exp2), "ct * (y * math.log(2))", "2 to the power x.")
LOG = ufunc(np.log, "ct / x", "The natural logarithm.", domain=ABOVE_ZERO)
LOG1P = ufunc(np.log1p, "ct / (1.0 + x)", "log(1 + x), accurate near zero.", domain=ABOVE_MINUS_ONE)
LOG2 = ufunc(
    wide(np.log2), "ct / x * (1 / math.log(2))", "The logarithm to base 2.", domain=ABOVE_ZERO
)
LOG10 = ufunc(
    wide(np.log10), "ct / x * (1 / math.log(10))", "The logarithm to base 10.", domain=ABOVE_ZERO
)
LOGADDEXP = ufunc(
    wide(np.logaddexp),
    "ct * xp.sigmoid(a - b), ct * xp.sigmoid(b - a)",
    "log(exp(a) + exp(b)), without overflow.",
    "a b",
    made_of=logaddexp,
)
SIN = ufunc(np.sin, "ct * xp.cos(x)", "The sine; x in radians.")
COS = ufunc(np.cos, "-ct * xp.sin(x)", "The cosine; x in radians.")
TAN = ufunc(wide(np.tan), "ct * (1.0 + y * y)", "The tangent; x in radians.", domain=WITHIN_ONE)
# By factors: 1 - x * x loses digits near 1.
ASIN = function(
    "asin",
    wide(np.arcsin),
    "ct * xp.rsqrt((1.0 - x) * (1.0 + x))",
    "The inverse sine, in radians.",
    domain=WITHIN_ONE,
)
ACOS = function(
    "acos",
    wide(np.arccos),
    "-ct * xp.rsqrt((1.0 - x) * (1.0 + x))",
    "The inverse cosine, in radians.",
    domain=WITHIN_ONE,
)
ATAN = function("atan", np.arctan, "ct / (1.0 + x * x)", "The inverse tangent, in radians.")
SINH = ufunc(wide(np.sinh), "ct * xp.cosh(x)", "The hyperbolic sine.")
COSH = ufunc(wide(np.cosh), "ct * xp.sinh(x)", "The hyperbolic cosine.")
TANH = ufunc(wide(np.tanh), "ct * (1.0 - y * y)", "The hyperbolic tangent.")
# x * x may overflow.
ASINH = function("asinh", wide(np.arcsinh), "ct / xp.hypot(x, 1.0)", "The inverse hyperbolic sine.")
# Two roots: x * x - 1 loses digits near 1 and overflows far from it.
ACOSH = function(
    "acosh",
    wide(np.arccosh),
    "ct / (xp.sqrt(x - 1.0) * xp.sqrt(x + 1.0))",
    "The inverse hyperbolic cosine.",
    domain=ABOVE_ONE,
)
ATANH = function(
    "atanh",
    wide(np.arctanh),
    "ct / ((1.0 - x) * (1.0 + x))",
    "The inverse hyperbolic tangent.",
    domain=WITHIN_ONE,
)

ERF = ufunc(erf, "ct * (2.0 / math.sqrt(math.pi) * xp.exp(-(x * x)))", "The error function.")
ERFC = function(
    "erfc",
    erfc,
    "-ct * (2.0 / math.sqrt(math.pi) * xp.exp(-(x * x)))",
    "1 - erf(x), accurate where that is small.",
)
