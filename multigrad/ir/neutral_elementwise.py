"""The neutral dialect, elementwise family; see `neutral.py`."""

from __future__ import annotations

from typing import Any

from . import ops
from .record import Value, apply, cast, copy_of, native_dtype, pow
from .types import BOOL, T

Tensor = Any

__all__ = [
    "abs", "add", "astype", "atan", "cast", "cast_like", "ceil", "clip", "cos", "divide", "equal",
    "erf", "exp", "expm1", "floor", "full_like", "greater", "greater_equal", "isfinite", "isinf",
    "isnan", "less", "less_equal", "log", "log1p", "logical_and", "logical_not", "logical_or",
    "logical_xor", "maximum", "minimum", "multiply", "negative", "not_equal", "ones_like",
    "positive", "pow", "reciprocal", "round", "rsqrt", "sign", "sin", "sqrt", "square",
    "stop_gradient", "subtract", "tanh", "trunc", "where", "zeros_like",
]  # fmt: skip


def add(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.ADD, a, b)


def subtract(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.SUB, a, b)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.MUL, a, b)


def divide(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.DIV, a, b)


def negative(x: Tensor) -> Tensor:
    return apply(ops.NEG, x)


def positive(x: Tensor) -> Tensor:
    return copy_of(x)


def abs(x: Tensor) -> Tensor:
    return apply(ops.ABS, x)


def sign(x: Tensor) -> Tensor:
    return apply(ops.SIGN, x)


def maximum(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.MAXIMUM, a, b)


def minimum(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.MINIMUM, a, b)


def square(x: Tensor) -> Tensor:
    return apply(ops.SQUARE, x)


def sqrt(x: Tensor) -> Tensor:
    return apply(ops.SQRT, x)


def rsqrt(x: Tensor) -> Tensor:
    return apply(ops.RSQRT, x)


def reciprocal(x: Tensor) -> Tensor:
    return apply(ops.RECIPROCAL, x)


def floor(x: Tensor) -> Tensor:
    return apply(ops.FLOOR, x)


def ceil(x: Tensor) -> Tensor:
    return apply(ops.CEIL, x)


def round(x: Tensor) -> Tensor:
    return apply(ops.ROUND, x)


def trunc(x: Tensor) -> Tensor:
    return apply(ops.TRUNC, x)


def exp(x: Tensor) -> Tensor:
    return apply(ops.EXP, x)


def expm1(x: Tensor) -> Tensor:
    return apply(ops.EXPM1, x)


def log(x: Tensor) -> Tensor:
    return apply(ops.LOG, x)


def log1p(x: Tensor) -> Tensor:
    return apply(ops.LOG1P, x)


def sin(x: Tensor) -> Tensor:
    return apply(ops.SIN, x)


def cos(x: Tensor) -> Tensor:
    return apply(ops.COS, x)


def atan(x: Tensor) -> Tensor:
    return apply(ops.ATAN, x)


def tanh(x: Tensor) -> Tensor:
    return apply(ops.TANH, x)


def erf(x: Tensor) -> Tensor:
    return apply(ops.ERF, x)


def less(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.LT, a, b)


def less_equal(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.LE, a, b)


def greater(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.GT, a, b)


def greater_equal(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.GE, a, b)


def equal(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.EQ, a, b)


def not_equal(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.NE, a, b)


def logical_and(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.AND, a, b)


def logical_or(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.OR, a, b)


def logical_xor(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.XOR, a, b)


def logical_not(x: Tensor) -> Tensor:
    return apply(ops.NOT, x)


def isnan(x: Tensor) -> Tensor:
    return apply(ops.ISNAN, x)


def isinf(x: Tensor) -> Tensor:
    return apply(ops.ISINF, x)


def isfinite(x: Tensor) -> Tensor:
    return apply(ops.ISFINITE, x)


def clip(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    """x limited to [min, max]; None leaves a side open; NaN propagates; max where min > max."""
    if min is None:
        return copy_of(x) if max is None else minimum(x, max)
    return maximum(x, min) if max is None else apply(ops.CLIP, x, min, max)


def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.WHERE, condition, a, b)


def astype(x: Tensor, dtype: Any) -> Tensor:
    return cast(x, dtype)


def cast_like(x: Tensor, like: Tensor) -> Tensor:
    """x in the dtype of `like`."""
    return cast(x, like.node.type.dtype if isinstance(like, Value) else like.dtype)


def full_like(x: Tensor, value: Tensor, dtype: Any = None) -> Tensor:
    """A tensor of x's shape filled with a number; bool where dtype says so."""
    if not isinstance(x, Value):
        given = None if dtype is None else native_dtype(x, dtype)
        return apply(ops.FULL_LIKE, x, value, dtype=given)
    if dtype is None:
        name = x.node.type.dtype if x.node.type.kind == "tensor" else T
    else:
        name = BOOL if dtype is bool or "bool" in str(dtype) else T
    if name == BOOL and not isinstance(value, Value):
        value = bool(value)
    return apply(ops.FULL_LIKE, x, value, dtype=name)


def zeros_like(x: Tensor, dtype: Any = None) -> Tensor:
    return full_like(x, 0.0, dtype)


def ones_like(x: Tensor, dtype: Any = None) -> Tensor:
    return full_like(x, 1.0, dtype)


def stop_gradient(x: Tensor) -> Tensor:
    return apply(ops.STOP_GRADIENT, x)
