"""The op table, elementwise family: arithmetic, functions, comparison, logic, selection, activations."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import meaning, pullbacks
from .op import (
    Op,
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

# --- exponential, trigonometric, error function ------------------------------------------------
EXP = function("exp", np.exp, pullbacks.exp, "e to the power x.")
EXPM1 = function("expm1", np.expm1, pullbacks.expm1, "exp(x) - 1, accurate near zero.")
LOG = function("log", np.log, pullbacks.log, "The natural logarithm.")
LOG1P = function("log1p", np.log1p, pullbacks.log1p, "log(1 + x), accurate near zero.")
SIN = function("sin", np.sin, pullbacks.sin, "The sine; x in radians.")
COS = function("cos", np.cos, pullbacks.cos, "The cosine; x in radians.")
ATAN = function("atan", np.arctan, pullbacks.atan, "The inverse tangent, in radians.")
TANH = function("tanh", meaning.tanh, pullbacks.tanh, "The hyperbolic tangent.")
ERF = function("erf", meaning.erf, pullbacks.erf, "The error function.")

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

# --- selection and types -----------------------------------------------------------------------
CLIP = op(
    "clip", "x min max", numpy=meaning.clip, vjp=pullbacks.clip, result=elementwise,
    doc="x limited to [min, max]; NaN propagates; max where min > max.",
)  # fmt: skip
WHERE = op(
    "where", "condition a b", coerce="where", numpy=np.where, vjp=pullbacks.where, result=chosen,
    doc="a where the condition holds, else b.",
)  # fmt: skip
CAST = op(
    "cast", "x", attrs=("dtype",), coerce="raw", numpy=meaning.cast, vjp=pullbacks.cast,
    result=cast_to, doc="x in another dtype; T is the input's.",
)  # fmt: skip
FULL_LIKE = op(
    "full_like", "x value", attrs=("dtype",), coerce="raw", numpy=meaning.full_like,
    vjp=pullbacks.full_like, result=filled, doc="A tensor of x's shape filled with a number.",
)  # fmt: skip
STOP_GRADIENT = op(
    "stop_gradient", "x", coerce="raw", numpy=meaning.stop_gradient, vjp=pullbacks.zero,
    result=same, doc="x, with derivative zero.",
)  # fmt: skip

# --- activations -------------------------------------------------------------------------------
SIGMOID = function("sigmoid", meaning.sigmoid, pullbacks.sigmoid, "1 / (1 + exp(-x)).")
RELU = function("relu", meaning.relu, pullbacks.relu, "max(x, 0).")
RELU6 = function("relu6", meaning.relu6, pullbacks.relu6, "min(max(x, 0), 6).")
SILU = function("silu", meaning.silu, pullbacks.silu, "x sigmoid(x).")
SOFTPLUS = function("softplus", meaning.softplus, pullbacks.softplus, "log(1 + exp(x)).")
HEAVISIDE = function("heaviside", meaning.heaviside, pullbacks.zero, "1 above zero, else 0.")
LEAKY_RELU = op(
    "leaky_relu", "x", attrs=("slope",), numpy=meaning.leaky_relu, vjp=pullbacks.leaky_relu,
    result=float_elementwise, doc="x above zero, else slope x.",
)  # fmt: skip
ELU = op(
    "elu", "x", attrs=("alpha",), numpy=meaning.elu, vjp=pullbacks.elu, result=float_elementwise,
    doc="x above zero, else alpha (exp(x) - 1).",
)  # fmt: skip
GELU = op(
    "gelu", "x", attrs=("approximate",), numpy=meaning.gelu, vjp=pullbacks.gelu,
    result=float_elementwise, doc="x Phi(x); approximate: the tanh form.",
)  # fmt: skip
