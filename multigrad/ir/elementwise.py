"""The op table, elementwise family: arithmetic, functions, comparison, logic, selection, integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import meaning, pullbacks, special_pullbacks
from .op import (
    Op,
    called,
    cast_to,
    chosen,
    compared,
    elementwise,
    filled,
    float_elementwise,
    op,
    same,
    structural,
)

# --- structure --------------------------------------------------------------------------------
INPUT = op(
    "input", "", attrs=("name",), result=structural, numpy=structural, vjp=None, doc="An input."
)
CALL = op(
    "call", "value *inputs", attrs=("function", "position"), result=called, numpy=structural, vjp=None,
    doc="An output of a function that has a gradient of its own.", coerce="raw",
)  # fmt: skip
CONST = op(
    "const", "", attrs=("value",), result=structural, numpy=structural, vjp=None, doc="A number."
)

# --- arithmetic -------------------------------------------------------------------------------


def arithmetic(name: str, numpy: Any, vjp: Any, doc: str, symbol: str | None = None) -> Op:
    """Declare an elementwise op of two operands."""
    return op(name, "a b", numpy=numpy, vjp=vjp, doc=doc, result=elementwise, symbol=symbol)


def function(name: str, numpy: Any, vjp: Any, doc: str) -> Op:
    """Declare an elementwise op of one operand with a float result."""
    return op(name, "x", numpy=numpy, vjp=vjp, doc=doc, result=float_elementwise)


def binary(name: str, numpy: Any, vjp: Any, doc: str) -> Op:
    """Declare an elementwise op of two operands with a float result."""
    return op(name, "a b", numpy=numpy, vjp=vjp, doc=doc, result=float_elementwise)


ADD = arithmetic("add", np.add, pullbacks.add, "a + b.", "+")
SUB = arithmetic("sub", np.subtract, pullbacks.sub, "a - b.", "-")
MUL = arithmetic("mul", np.multiply, pullbacks.mul, "a * b.", "*")
DIV = op(
    "div", "a b", numpy=np.true_divide, vjp=pullbacks.div, doc="a / b.", result=float_elementwise,
    symbol="/",
)  # fmt: skip
POW = op("pow", "a b", numpy=np.power, vjp=pullbacks.power, doc="a to the power b.", result=float_elementwise)  # fmt: skip
MAXIMUM = arithmetic("maximum", np.maximum, pullbacks.maximum, "The larger; NaN propagates.")
MINIMUM = arithmetic("minimum", np.minimum, pullbacks.minimum, "The smaller; NaN propagates.")
NEG = op("neg", "x", numpy=np.negative, vjp=pullbacks.neg, doc="-x.", result=elementwise, symbol="-")  # fmt: skip
ABS = op("abs", "x", numpy=np.abs, vjp=pullbacks.absolute, doc="|x|.", result=elementwise)
SIGN = function("sign", meaning.sign, pullbacks.zero, "-1, 0 or 1; NaN stays NaN.")
SQUARE = function("square", np.square, pullbacks.square, "x times x.")
SQRT = function("sqrt", np.sqrt, pullbacks.sqrt, "The square root; NaN below zero.")
RSQRT = function("rsqrt", meaning.rsqrt, pullbacks.rsqrt, "1 / sqrt(x).")
RECIPROCAL = function("reciprocal", meaning.reciprocal, pullbacks.reciprocal, "1 / x.")
FLOOR = function("floor", np.floor, pullbacks.zero, "The largest integer not above x.")
CEIL = function("ceil", np.ceil, pullbacks.zero, "The smallest integer not below x.")
ROUND = function("round", np.round, pullbacks.zero, "The nearest integer, ties to even.")
TRUNC = function("trunc", np.trunc, pullbacks.zero, "The integer part.")
FRAC = function("frac", meaning.frac, pullbacks.frac, "x - trunc(x).")
CBRT = function("cbrt", meaning.cbrt, pullbacks.cbrt, "The cube root.")
FLOOR_DIVIDE = arithmetic(
    "floor_divide", meaning.floor_divide, pullbacks.zero, "The largest integer not above a / b."
)
REMAINDER = arithmetic(
    "remainder", meaning.remainder, pullbacks.remainder, "a - b floor(a / b), with the sign of b."
)
FMOD = arithmetic("fmod", meaning.fmod, pullbacks.fmod, "a - b trunc(a / b), with the sign of a.")
FMAX = arithmetic("fmax", meaning.fmax, pullbacks.fmax, "The larger; a number rather than NaN.")
FMIN = arithmetic("fmin", meaning.fmin, pullbacks.fmin, "The smaller; a number rather than NaN.")
COPYSIGN = arithmetic("copysign", meaning.copysign, pullbacks.copysign, "|a| with the sign of b.")
HYPOT = binary("hypot", meaning.hypot, pullbacks.hypot, "sqrt(a^2 + b^2), without overflow.")
ATAN2 = binary(
    "atan2", meaning.atan2, pullbacks.atan2, "The angle of the point (b, a), in radians."
)
LERP = op(
    "lerp", "a b weight", numpy=meaning.lerp, vjp=pullbacks.lerp, result=float_elementwise,
    doc="a + weight (b - a).",
)  # fmt: skip

# --- exponential and trigonometric ---------------------------------------------------------------
EXP = function("exp", np.exp, pullbacks.exp, "e to the power x.")
EXPM1 = function("expm1", np.expm1, pullbacks.expm1, "exp(x) - 1, accurate near zero.")
LOG = function("log", np.log, pullbacks.log, "The natural logarithm.")
LOG1P = function("log1p", np.log1p, pullbacks.log1p, "log(1 + x), accurate near zero.")
EXP2 = function("exp2", meaning.exp2, pullbacks.exp2, "2 to the power x.")
LOG2 = function("log2", meaning.log2, pullbacks.log2, "The logarithm to base 2.")
LOG10 = function("log10", meaning.log10, pullbacks.log10, "The logarithm to base 10.")
LOGADDEXP = binary(
    "logaddexp", meaning.logaddexp, pullbacks.logaddexp, "log(exp(a) + exp(b)), without overflow."
)
XLOGY = binary("xlogy", meaning.xlogy, pullbacks.xlogy, "a log(b); zero where a is zero.")
XLOG1PY = binary(
    "xlog1py", meaning.xlog1py, pullbacks.xlog1py, "a log(1 + b); zero where a is zero."
)
SIN = function("sin", np.sin, pullbacks.sin, "The sine; x in radians.")
COS = function("cos", np.cos, pullbacks.cos, "The cosine; x in radians.")
TAN = function("tan", meaning.tan, pullbacks.tan, "The tangent; x in radians.")
ASIN = function("asin", meaning.asin, pullbacks.asin, "The inverse sine, in radians.")
ACOS = function("acos", meaning.acos, pullbacks.acos, "The inverse cosine, in radians.")
ATAN = function("atan", np.arctan, pullbacks.atan, "The inverse tangent, in radians.")
SINC = function("sinc", meaning.sinc, special_pullbacks.sinc, "sin(pi x) / (pi x), and 1 at zero.")
DEG2RAD = function("deg2rad", meaning.deg2rad, pullbacks.deg2rad, "Degrees in radians.")
RAD2DEG = function("rad2deg", meaning.rad2deg, pullbacks.rad2deg, "Radians in degrees.")
SINH = function("sinh", meaning.sinh, pullbacks.sinh, "The hyperbolic sine.")
COSH = function("cosh", meaning.cosh, pullbacks.cosh, "The hyperbolic cosine.")
TANH = function("tanh", meaning.tanh, pullbacks.tanh, "The hyperbolic tangent.")
ASINH = function("asinh", meaning.asinh, pullbacks.asinh, "The inverse hyperbolic sine.")
ACOSH = function("acosh", meaning.acosh, pullbacks.acosh, "The inverse hyperbolic cosine.")
ATANH = function("atanh", meaning.atanh, pullbacks.atanh, "The inverse hyperbolic tangent.")

# --- error and gamma functions -----------------------------------------------------------------
ERF = function("erf", meaning.erf, special_pullbacks.erf, "The error function.")
ERFC = function(
    "erfc", meaning.erfc, special_pullbacks.erfc, "1 - erf(x), accurate where that is small."
)
ERFINV = function("erfinv", meaning.erfinv, special_pullbacks.erfinv, "The inverse of erf.")
NDTR = function(
    "ndtr", meaning.ndtr, special_pullbacks.ndtr, "The normal distribution function Phi."
)
NDTRI = function("ndtri", meaning.ndtri, special_pullbacks.ndtri, "The inverse of ndtr.")
LOG_NDTR = function("log_ndtr", meaning.log_ndtr, special_pullbacks.log_ndtr, "log(ndtr(x)).")
LGAMMA = function("lgamma", meaning.lgamma, special_pullbacks.lgamma, "log |gamma(x)|.")
DIGAMMA = function(
    "digamma",
    meaning.digamma,
    special_pullbacks.digamma,
    "The derivative of lgamma; NaN at its poles but zero.",
)
POLYGAMMA = op(
    "polygamma", "x", attrs=("n",), numpy=meaning.polygamma, vjp=special_pullbacks.polygamma,
    result=float_elementwise, doc="The n-th derivative of digamma, n at least 1; NaN below zero.",
)  # fmt: skip

# --- comparison and logic ----------------------------------------------------------------------


def comparison(name: str, numpy: Any, symbol: str, doc: str) -> Op:
    """Declare an elementwise comparison; comparisons with NaN are False, but `ne`."""
    return op(name, "a b", numpy=numpy, vjp=pullbacks.zero, doc=doc, result=compared, symbol=symbol)


def logic(name: str, args: str, numpy: Any, symbol: str | None, doc: str) -> Op:
    """Declare an elementwise op on bools."""
    return op(
        name, args, coerce="bool", numpy=numpy, vjp=pullbacks.zero, doc=doc, result=compared,
        symbol=symbol,
    )  # fmt: skip


LT = comparison("lt", np.less, "<", "a < b.")
LE = comparison("le", np.less_equal, "<=", "a <= b.")
GT = comparison("gt", np.greater, ">", "a > b.")
GE = comparison("ge", np.greater_equal, ">=", "a >= b.")
EQ = comparison("eq", np.equal, "==", "a equals b; 0 equals -0.")
NE = comparison("ne", np.not_equal, "!=", "a differs from b; NaN differs from all.")
AND = logic("and", "a b", np.logical_and, "&", "Both.")
OR = logic("or", "a b", np.logical_or, "|", "At least one.")
XOR = logic("xor", "a b", np.logical_xor, "^", "Exactly one.")
NOT = logic("not", "x", np.logical_not, "~", "The contrary.")
ISNAN = op("isnan", "x", numpy=np.isnan, vjp=pullbacks.zero, doc="x is NaN.", result=compared)
ISINF = op("isinf", "x", numpy=np.isinf, vjp=pullbacks.zero, doc="x is infinite.", result=compared)
ISFINITE = op(
    "isfinite", "x", numpy=np.isfinite, vjp=pullbacks.zero, doc="Not NaN, not inf.", result=compared
)
SIGNBIT = op(
    "signbit", "x", numpy=np.signbit, vjp=pullbacks.zero, result=compared,
    doc="The sign bit is set: x is below zero, or -0.",
)  # fmt: skip

# --- selection and types -----------------------------------------------------------------------
CLIP = op(
    "clip", "x min max", numpy=meaning.clip, vjp=pullbacks.clip, result=elementwise,
    doc="x limited to [min, max]; NaN propagates; max where min > max.",
)  # fmt: skip
WHERE = op(
    "where", "condition a b", coerce="where", numpy=np.where, vjp=pullbacks.where, result=chosen,
    doc="a where the condition holds, else b.",
)  # fmt: skip
NAN_TO_NUM = op(
    "nan_to_num", "x", attrs=("nan", "posinf", "neginf"), numpy=meaning.nan_to_num,
    vjp=pullbacks.nan_to_num, result=float_elementwise,
    doc="x with NaN and infinities replaced; None: by the largest number of the dtype.",
)  # fmt: skip
CAST = op(
    "cast", "x", attrs=("dtype",), coerce="raw", numpy=meaning.cast, vjp=pullbacks.cast,
    result=cast_to, doc="x in another dtype; T is the input's. To int32: truncated, saturated, NaN gives 0.",
)  # fmt: skip
FULL_LIKE = op(
    "full_like", "x value", attrs=("dtype",), coerce="raw", numpy=meaning.full_like,
    vjp=pullbacks.full_like, result=filled, doc="A tensor of x's shape filled with a number.",
)  # fmt: skip
STOP_GRADIENT = op(
    "stop_gradient", "x", coerce="raw", numpy=meaning.stop_gradient, vjp=pullbacks.zero,
    result=same, doc="x, with derivative zero.",
)  # fmt: skip

# --- integers ----------------------------------------------------------------------------------


def bitwise(name: str, args: str, numpy: Any, symbol: str | None, doc: str) -> Op:
    """Declare an elementwise op on int32."""
    return op(
        name, args, coerce="int", numpy=numpy, vjp=pullbacks.zero, doc=doc, result=elementwise,
        symbol=symbol,
    )  # fmt: skip


BITWISE_AND = bitwise("bitwise_and", "a b", np.bitwise_and, "&", "The bits set in both.")
BITWISE_OR = bitwise("bitwise_or", "a b", np.bitwise_or, "|", "The bits set in at least one.")
BITWISE_XOR = bitwise("bitwise_xor", "a b", np.bitwise_xor, "^", "The bits set in exactly one.")
BITWISE_INVERT = bitwise("bitwise_invert", "x", np.bitwise_not, "~", "The bits not set.")
BITWISE_LEFT_SHIFT = bitwise(
    "bitwise_left_shift", "a b", np.left_shift, None, "a times 2 to the b, without what overflows."
)
BITWISE_RIGHT_SHIFT = bitwise(
    "bitwise_right_shift", "a b", np.right_shift, None, "a over 2 to the b, rounded down."
)
