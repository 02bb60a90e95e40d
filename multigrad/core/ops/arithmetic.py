"""Elementary functions: comparisons and logic, arithmetic, powers, signs, rounding, remainders;
exponentials, logarithms, trigonometric, hyperbolic and error functions.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from ..ir.op import Op, Refused, compared, elementwise
from .numerics import Array, erf, erfc, wide
from .properties import ABOVE_MINUS_ONE, ABOVE_ZERO, REALS, in_first, in_one, linear
from .table import Cotangents, Number, composite, function, op, ufunc, zero

# --- comparisons, logic, tests of numbers ---------------------------------------------------------


def comparison(name: str, symbol: str, numpy: Any, on_numbers: Any, doc: str) -> Op:
    """Declare an elementwise comparison; with NaN it is False, except for `ne`."""
    fields = {"symbol": symbol, "xp": numpy.__name__, "on_numbers": on_numbers}
    return op(name, "a b", numpy=numpy, vjp=zero, doc=doc, result=compared, integer=True, **fields)


LT = comparison("lt", "<", np.less, operator.lt, "a < b.")
LE = comparison("le", "<=", np.less_equal, operator.le, "a <= b.")
GT = comparison("gt", ">", np.greater, operator.gt, "a > b.")
GE = comparison("ge", ">=", np.greater_equal, operator.ge, "a >= b.")
EQ = comparison("eq", "==", np.equal, operator.eq, "a equals b; 0 equals -0.")
NE = comparison("ne", "!=", np.not_equal, operator.ne, "a differs from b; NaN always differs.")


def logical(name: str, symbol: str, numpy: Any, on_numbers: Any, doc: str) -> Op:
    args = "x" if numpy.nin == 1 else "a b"
    fields = {"symbol": symbol, "xp": numpy.__name__, "on_numbers": on_numbers}
    return op(name, args, coerce="bool", numpy=numpy, vjp=zero, doc=doc, result=compared, **fields)


def logical_and(a: Number, b: Number) -> Number:
    return bool(a) and bool(b)


def logical_or(a: Number, b: Number) -> Number:
    return bool(a) or bool(b)


AND = logical("and", "&", np.logical_and, logical_and, "Both.")
OR = logical("or", "|", np.logical_or, logical_or, "At least one.")
XOR = logical("xor", "^", np.logical_xor, operator.ne, "Exactly one.")
NOT = logical("not", "~", np.logical_not, operator.not_, "Negation.")


def question(name: str, numpy: Any, doc: str, on_numbers: Any = None) -> Op:
    return op(name, "x", numpy=numpy, vjp=zero, doc=doc, result=compared, on_numbers=on_numbers)


ISNAN = question("isnan", np.isnan, "x is NaN.", math.isnan)
ISINF = question("isinf", np.isinf, "x is infinite.", math.isinf)
ISFINITE = question("isfinite", np.isfinite, "Not NaN, not inf.", math.isfinite)

# --- sums and products -------------------------------------------------------------------------
# The hint for bools, where an op is for numbers only.
OF_NUMBERS = Refused("Cast to a float dtype first")


def binary(numpy: Any, vjp: Any, doc: str, **fields: Any) -> Op:
    """Declare an elementwise op of two operands, named as NumPy's; `integer`: it keeps integers."""
    name = numpy.__name__
    return op(name, "a b", numpy=numpy, vjp=vjp, doc=doc, result=elementwise, **fields)


def infix(symbol: str, name: str, numpy: Any, vjp: Any, on_numbers: Any, **fields: Any) -> Op:
    """Declare one of Python's operators, which returns integers for integers."""
    doc = f"a {symbol} b." if numpy.nin == 2 else f"{symbol}x."
    fields |= {"xp": numpy.__name__, "symbol": symbol, "on_numbers": on_numbers}
    fields |= {"result": elementwise, "integer": True, "plain": True}
    return op(name, "a b" if numpy.nin == 2 else "x", numpy=numpy, vjp=vjp, doc=doc, **fields)


def divide(a: Number, b: Number) -> Number:
    # Python raises for a division by zero; IEEE 754 gives NaN or a signed infinity.
    if b != 0:
        return a / b
    if a == 0 or math.isnan(a):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def rounded(a: Number) -> Number:
    # Python's round gives an int, which has no -0, and raises for NaN and infinities.
    return math.copysign(float(round(a)), a) if math.isfinite(a) else a


def square_root(a: Number) -> Number:
    # math.sqrt raises below zero.
    return math.sqrt(a) if a >= 0 else math.nan


EITHER = Refused("Write a ^ b for where they differ")
CONTRARY = Refused("Write ~x for the contrary")
ADD = infix("+", "add", np.add, "ct, ct", operator.add, degree=linear, on_bools=OR)
SUB = infix("-", "sub", np.subtract, "ct, -ct", operator.sub, degree=linear, on_bools=EITHER)
MUL = infix(
    "*",
    "mul",
    np.multiply,
    "ct * b, ct * a",
    operator.mul,
    degree=in_one,
    on_bools=AND,
)
DIV = function(
    "div",
    np.true_divide,
    "ct / b, -ct * (y / b)",
    "a / b.",
    "a b",
    xp="divide",
    symbol="/",
    degree=in_first,
    on_numbers=divide,
    domain=(REALS, ABOVE_ZERO),
)
NEG = infix("-", "neg", np.negative, "-ct", operator.neg, degree=linear, on_bools=CONTRARY)

# --- powers ------------------------------------------------------------------------------------


def pow_vjp(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    # The slope in b is taken as 0 where a <= 0, and the slope in a as 0 where b == 0.
    positive = xp.where(xp.greater(a, 0), a, 1.0)
    by_a = xp.where(xp.equal(b, 0), 0.0, b * xp.pow(a, b - 1))
    return ct * by_a, ct * xp.where(xp.greater(a, 0), y * xp.log(positive), 0.0)


def square(x: Number) -> Number:
    return x * x


def rsqrt(x: Array) -> Array:
    return x.dtype.type(1) / np.sqrt(x)


def reciprocal(xp: Any, x: Any) -> Any:
    return 1.0 / x


POW = function(
    "pow", np.power, pow_vjp, "a to the power b.", "a b", composed=True, domain=ABOVE_ZERO
)
SQUARE = ufunc(
    np.square,
    "ct * (2.0 * x)",
    "x times x.",
    power=2,
    on_numbers=square,
    integer=True,
)
SQRT = ufunc(
    np.sqrt,
    "ct * 0.5 / y",
    "The square root; NaN below zero.",
    power=0.5,
    domain=ABOVE_ZERO,
    on_numbers=square_root,
)
# By y and x, because y ** 3 overflows earlier.
RSQRT = function("rsqrt", rsqrt, "ct * -0.5 * y / x", "1 / sqrt(x).", power=-0.5, domain=ABOVE_ZERO)
RECIPROCAL = composite(
    reciprocal,
    "-ct * y * y",
    "1 / x.",
    rounds=False,
    power=-1,
    on_bools=OF_NUMBERS,
    domain=ABOVE_ZERO,
)

# --- the larger, the smaller, and signs --------------------------------------------------------


def to_chosen(xp: Any, ct: Any, a: Any, b: Any, is_first: Any) -> Cotangents:
    """Return the cotangents of two operands of which one is the result; equal ones share."""
    share = xp.where(xp.equal(a, b), 0.5, xp.where(is_first, 1.0, 0.0))
    return ct * share, ct * (1.0 - share)


def maximum_vjp(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    return to_chosen(xp, ct, a, b, is_first=xp.greater(a, b))


def minimum_vjp(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    return to_chosen(xp, ct, a, b, is_first=xp.less(a, b))


def maximum(a: Number, b: Number) -> Number:
    return a if math.isnan(a) or a >= b else b


def minimum(a: Number, b: Number) -> Number:
    return a if math.isnan(a) or a <= b else b


def sign(x: Array) -> Array:
    return np.sign(x)


MAXIMUM = binary(
    np.maximum,
    maximum_vjp,
    "The larger; NaN propagates.",
    integer=True,
    on_numbers=maximum,
    on_bools=OR,
)
MINIMUM = binary(
    np.minimum,
    minimum_vjp,
    "The smaller; NaN propagates.",
    integer=True,
    on_numbers=minimum,
    on_bools=AND,
)
ABS = op(
    "abs",
    "x",
    numpy=np.abs,
    vjp="ct * xp.sign(x)",
    doc="|x|.",
    result=elementwise,
    integer=True,
    on_numbers=abs,
    on_bools="numbers",
)
SIGN = function("sign", sign, zero, "-1, 0 or 1; NaN stays NaN.", on_bools=OF_NUMBERS, integer=True)

# --- rounding and remainders -------------------------------------------------------------------


def floor_divide(a: Number, b: Number) -> Number:
    # In integers where both are: half of a length stays a length.
    return a // b if b != 0 else divide(a, b)


def remainder(a: Number, b: Number) -> Number:
    return a % b if b != 0 and not math.isinf(a) else math.nan


def trunc(xp: Any, x: Any) -> Any:
    return xp.where(x < 0, xp.ceil(x), xp.floor(x))


FLOOR = ufunc(np.floor, zero, "The largest integer not above x.", on_bools="numbers")
CEIL = ufunc(np.ceil, zero, "The smallest integer not below x.", on_bools="numbers")
ROUND = function("round", np.round, zero, "The nearest integer, ties to even.", on_numbers=rounded)
TRUNC = ufunc(np.trunc, zero, "The integer part.", on_bools="numbers", made_of=trunc, rounds=False)
FLOOR_DIVIDE = binary(
    wide(np.floor_divide),
    zero,
    "The largest integer not above a / b.",
    integer=True,
    on_numbers=floor_divide,
    on_bools=OF_NUMBERS,
)
REMAINDER = binary(
    wide(np.remainder),
    "ct, -ct * xp.floor_divide(a, b)",
    "a - b floor(a / b), with the sign of b.",
    integer=True,
    on_numbers=remainder,
    on_bools=OF_NUMBERS,
)

# --- exponentials, logarithms, trigonometric, hyperbolic and error functions ---------------------

EXP = ufunc(np.exp, "ct * y", "e to the power x.")
EXPM1 = ufunc(np.expm1, "ct * xp.exp(x)", "exp(x) - 1, accurate near zero.")
LOG = ufunc(np.log, "ct / x", "The natural logarithm.", domain=ABOVE_ZERO)
LOG1P = ufunc(np.log1p, "ct / (1.0 + x)", "log(1 + x), accurate near zero.", domain=ABOVE_MINUS_ONE)
SIN = ufunc(np.sin, "ct * xp.cos(x)", "The sine; x in radians.")
COS = ufunc(np.cos, "-ct * xp.sin(x)", "The cosine; x in radians.")
ATAN = function("atan", np.arctan, "ct / (1.0 + x * x)", "The inverse tangent, in radians.")
SINH = ufunc(wide(np.sinh), "ct * xp.cosh(x)", "The hyperbolic sine.")
COSH = ufunc(wide(np.cosh), "ct * xp.sinh(x)", "The hyperbolic cosine.")
TANH = ufunc(wide(np.tanh), "ct * (1.0 - y * y)", "The hyperbolic tangent.")

ERF = ufunc(erf, "ct * (2.0 / math.sqrt(math.pi) * xp.exp(-(x * x)))", "The error function.")
ERFC = function(
    "erfc",
    erfc,
    "-ct * (2.0 / math.sqrt(math.pi) * xp.exp(-(x * x)))",
    "1 - erf(x), accurate where that is small.",
)
