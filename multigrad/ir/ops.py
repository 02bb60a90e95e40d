"""The op table: every operation of the rule IR, declared once.

A row gives the name, operands, attributes, infix symbol, how operands are coerced, the result's type, the NumPy
meaning (`meaning.py`), the VJP (`pullbacks.py`) and one line of documentation. Backends map these rows to
their own callables; docs, tests and the command line read the same table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import meaning, pullbacks
from .types import BOOL, BOOL_SCALAR, INT_SCALAR, KEY, UNKNOWN, Type, broadcast_shapes, reduce_shape

ResultRule = Callable[..., Type]


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One row of the table.

    `coerce` says what operands become first: "float" (bools are cast), "same" (one dtype for all),
    "bool" (must be bools), "where" (a bool, then "same"), "raw" (taken as they are).
    """

    name: str
    operands: tuple[str, ...]
    attrs: tuple[str, ...]
    coerce: str
    result: ResultRule
    numpy: Callable[..., Any]
    vjp: Callable[..., tuple[Any, ...]] | None
    doc: str
    symbol: str | None = None
    random: bool = False

    def __repr__(self) -> str:
        return f"Op({self.name})"


OPS: dict[str, Op] = {}


def op(
    name: str,
    args: str,
    *,
    numpy: Callable[..., Any],
    vjp: Callable[..., Any] | None,
    doc: str,
    result: ResultRule,
    coerce: str = "float",
    attrs: tuple[str, ...] = (),
    symbol: str | None = None,
    random: bool = False,
) -> Op:
    """Declare a row and return it."""
    row = Op(name, tuple(args.split()), attrs, coerce, result, numpy, vjp, doc, symbol, random)
    OPS[name] = row
    return row


# --- result types -----------------------------------------------------------------------------


def elementwise(*types: Type, **attrs: Any) -> Type:
    tensors = [t for t in types if t.kind == "tensor"]
    if not tensors:
        weak = "int" if all(t.dtype == "int" for t in types) else "float"
        return Type("scalar", "bool" if all(t.dtype == "bool" for t in types) else weak)
    return Type("tensor", tensors[0].dtype, broadcast_shapes(*(t.shape for t in tensors)))


def float_elementwise(*types: Type, **attrs: Any) -> Type:
    type_ = elementwise(*types)
    return Type("scalar", "float") if type_.kind == "scalar" else type_


def compared(*types: Type, **attrs: Any) -> Type:
    type_ = elementwise(*types)
    return BOOL_SCALAR if type_.kind == "scalar" else Type("tensor", BOOL, type_.shape)


def chosen(condition: Type, a: Type, b: Type) -> Type:
    values = elementwise(a, b)
    if condition.kind == "scalar":
        return values
    if values.kind == "scalar":
        raise TypeError("where needs a tensor among its values")
    return Type("tensor", values.dtype, broadcast_shapes(condition.shape, a.shape, b.shape))


def cast_to(x: Type, *, dtype: str) -> Type:
    return Type("tensor", dtype, x.shape)


def filled(x: Type, value: Type, *, dtype: str | None) -> Type:
    return Type("tensor", dtype or x.dtype, x.shape)


def reduced(x: Type, *, axis: Any, keepdims: bool, **attrs: Any) -> Type:
    return Type("tensor", x.dtype, reduce_shape(x.shape, axis, keepdims))


def shaped_like_second(x: Type, like: Type) -> Type:
    return Type("tensor", x.dtype, like.shape)


def expanded(x: Type, *, axis: int) -> Type:
    back = isinstance(x.shape, tuple) and x.shape == ("reduced", axis, False)
    return Type("tensor", x.dtype, ("reduced", axis, True) if back else UNKNOWN)


def integer(x: Type, **attrs: Any) -> Type:
    return INT_SCALAR


def same(x: Type, **attrs: Any) -> Type:
    return x


def drawn(key: Type, x: Type) -> Type:
    return Type("tensor", x.dtype, x.shape)


def key(*types: Type, **attrs: Any) -> Type:
    return KEY


def structural(*args: Any, **attrs: Any) -> Any:
    raise TypeError("an input or a constant is not executed")


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

# --- reductions --------------------------------------------------------------------------------
AXIS = ("axis", "keepdims")


def reduction(name: str, numpy: Any, vjp: Any, doc: str, *attrs: str, coerce: str = "float") -> Op:
    """Declare a reduction over `axis` (int, tuple or None for all)."""
    return op(
        name, "x", attrs=(*AXIS, *attrs), coerce=coerce, numpy=numpy, vjp=vjp, doc=doc,
        result=reduced,
    )  # fmt: skip


SUM = reduction("sum", meaning.sum_, pullbacks.sum_, "The sum; 0 where there is nothing.")
MEAN = reduction("mean", meaning.mean, pullbacks.mean, "The mean; NaN where there is nothing.")
MAX = reduction("max", meaning.max_, pullbacks.extreme, "The largest; NaN propagates.")
MIN = reduction("min", meaning.min_, pullbacks.extreme, "The smallest; NaN propagates.")
ANY = reduction("any", meaning.any_, pullbacks.zero, "At least one.", coerce="bool")
ALL = reduction("all", meaning.all_, pullbacks.zero, "Every one.", coerce="bool")
NORM = reduction(
    "norm", meaning.norm, pullbacks.norm, "The Euclidean norm; inf where squares overflow."
)
VAR = reduction("var", meaning.var, pullbacks.var, "Variance; divides by n - correction.", "correction")  # fmt: skip
STD = reduction("std", meaning.std, pullbacks.std, "Standard deviation, as var.", "correction")

# --- shapes ------------------------------------------------------------------------------------
SUM_TO = op(
    "sum_to", "x like", numpy=meaning.sum_to, vjp=pullbacks.sum_to, coerce="raw",
    result=shaped_like_second, doc="x summed to the shape of `like` (undoes broadcasting).",
)  # fmt: skip
BROADCAST_TO = op(
    "broadcast_to", "x like", numpy=meaning.broadcast_to, vjp=pullbacks.broadcast_to, coerce="raw",
    result=shaped_like_second, doc="x repeated to the shape of `like`.",
)  # fmt: skip
EXPAND_DIMS = op(
    "expand_dims", "x", attrs=("axis",), numpy=meaning.expand_dims, vjp=pullbacks.expand_dims,
    coerce="raw", result=expanded, doc="A new axis of length 1.",
)  # fmt: skip
DIM = op(
    "dim", "x", attrs=("axis",), coerce="raw", numpy=meaning.dim, vjp=pullbacks.zero,
    result=integer, doc="The length of one axis, an integer known at run time.",
)  # fmt: skip
SIZE = op(
    "size", "x", coerce="raw", numpy=meaning.size, vjp=pullbacks.zero, result=integer,
    doc="The number of elements, an integer known at run time.",
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

# --- random draws: pure, the key is an operand ---------------------------------------------------
FOLD_IN = op(
    "fold_in", "key", attrs=("n",), coerce="raw", numpy=meaning.fold_in, vjp=pullbacks.zero,
    result=key, doc="The n-th key derived from a key.",
)  # fmt: skip
UNIFORM_LIKE = op(
    "uniform_like", "key x", coerce="raw", numpy=meaning.uniform_like, vjp=pullbacks.zero,
    result=drawn, doc="Uniform on [0, 1), of x's shape and dtype.", random=True,
)  # fmt: skip
NORMAL_LIKE = op(
    "normal_like", "key x", coerce="raw", numpy=meaning.normal_like, vjp=pullbacks.zero,
    result=drawn, doc="Standard normal, of x's shape and dtype.", random=True,
)  # fmt: skip

CALLABLE_OPS: tuple[Op, ...] = tuple(row for row in OPS.values() if row not in (INPUT, CONST))
# Ops whose second operand gives a shape only: its values are not read.
SHAPE_ONLY: dict[Op, tuple[int, ...]] = {
    SUM_TO: (1,), BROADCAST_TO: (1,), FULL_LIKE: (0,), DIM: (0,), SIZE: (0,),
    UNIFORM_LIKE: (1,), NORMAL_LIKE: (1,),
}  # fmt: skip
