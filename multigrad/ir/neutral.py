"""The neutral dialect, `xg.xp`: Array API names plus network functions, over symbolic values and real arrays.

It follows the Array API: `axis`, `keepdims`; NaN propagates through min, max and clip; `std` and `var` divide
by n (`correction=0`). `gelu` is the exact one, `leaky_relu` has slope 0.01.
"""

from __future__ import annotations

from math import prod
from typing import Any

from . import ops
from .record import Value, apply, cast, constant, known_shape, native_dtype, pow
from .types import BOOL, T

Axis = int | tuple[int, ...] | list[int] | None
Tensor = Any

pi = 3.141592653589793
e = 2.718281828459045
inf = float("inf")
nan = float("nan")

__all__ = [
    "abs", "add", "all", "any", "astype", "atan", "broadcast_to", "cast", "cast_like", "ceil",
    "clip", "cos", "dim", "divide", "e", "elu", "equal", "erf", "exp", "expand_dims", "expm1",
    "floor", "full_like", "gelu", "greater", "greater_equal", "heaviside", "inf", "isfinite",
    "isinf", "isnan", "leaky_relu", "less", "less_equal", "log", "log1p", "logical_and",
    "logical_not", "logical_or", "logical_xor", "max", "maximum", "mean", "min", "minimum",
    "multiply", "nan", "negative", "norm", "not_equal", "ones_like", "pi", "positive", "pow",
    "rand_like", "randn_like", "reciprocal", "relu", "relu6", "round", "rsqrt", "sigmoid", "sign",
    "silu", "sin", "size", "softplus", "sqrt", "square", "std", "stop_gradient", "subtract", "sum",
    "sum_to", "tanh", "trunc", "var", "where", "zeros_like",
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
    return x


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
        return x if max is None else minimum(x, max)
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


def _axes(axis: Axis) -> int | tuple[int, ...] | None:
    return tuple(axis) if isinstance(axis, list) else axis


def sum(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return apply(ops.SUM, x, axis=_axes(axis), keepdims=bool(keepdims))


def mean(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return apply(ops.MEAN, x, axis=_axes(axis), keepdims=bool(keepdims))


def max(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return apply(ops.MAX, x, axis=_axes(axis), keepdims=bool(keepdims))


def min(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return apply(ops.MIN, x, axis=_axes(axis), keepdims=bool(keepdims))


def any(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return apply(ops.ANY, x, axis=_axes(axis), keepdims=bool(keepdims))


def all(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return apply(ops.ALL, x, axis=_axes(axis), keepdims=bool(keepdims))


def norm(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The Euclidean norm, over all axes by default."""
    return apply(ops.NORM, x, axis=_axes(axis), keepdims=bool(keepdims))


def var(x: Tensor, axis: Axis = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    return apply(ops.VAR, x, axis=_axes(axis), keepdims=bool(keepdims), correction=correction)


def std(x: Tensor, axis: Axis = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    return apply(ops.STD, x, axis=_axes(axis), keepdims=bool(keepdims), correction=correction)


def sum_to(x: Tensor, like: Tensor) -> Tensor:
    """x summed to the shape of `like`: undoes broadcasting."""
    return apply(ops.SUM_TO, x, like)


def broadcast_to(x: Tensor, like: Tensor) -> Tensor:
    """x repeated to the shape of `like`."""
    return apply(ops.BROADCAST_TO, x, like)


def expand_dims(x: Tensor, axis: int = 0) -> Tensor:
    return apply(ops.EXPAND_DIMS, x, axis=axis)


def dim(x: Tensor, axis: int) -> Any:
    """The length of one axis, known at run time."""
    known = known_shape(x)
    return apply(ops.DIM, x, axis=axis) if known is None else x.trace.value(constant(known[axis]))


def size(x: Tensor) -> Any:
    """The number of elements, known at run time."""
    known = known_shape(x)
    return apply(ops.SIZE, x) if known is None else x.trace.value(constant(prod(known)))


def stop_gradient(x: Tensor) -> Tensor:
    return apply(ops.STOP_GRADIENT, x)


def sigmoid(x: Tensor) -> Tensor:
    return apply(ops.SIGMOID, x)


def relu(x: Tensor) -> Tensor:
    return apply(ops.RELU, x)


def relu6(x: Tensor) -> Tensor:
    return apply(ops.RELU6, x)


def silu(x: Tensor) -> Tensor:
    return apply(ops.SILU, x)


def softplus(x: Tensor) -> Tensor:
    return apply(ops.SOFTPLUS, x)


def heaviside(x: Tensor) -> Tensor:
    """1 above zero, else 0."""
    return apply(ops.HEAVISIDE, x)


def leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    return apply(ops.LEAKY_RELU, x, slope=float(slope))


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return apply(ops.ELU, x, alpha=float(alpha))


def gelu(x: Tensor, approximate: bool = False) -> Tensor:
    return apply(ops.GELU, x, approximate=bool(approximate))


def rand_like(x: Tensor, key: Any = None) -> Tensor:
    """Uniform on [0, 1), of x's shape and dtype; in a rule each draw takes the next key."""
    return apply(ops.UNIFORM_LIKE, _draw_key(x, key), x)


def randn_like(x: Tensor, key: Any = None) -> Tensor:
    """Standard normal, of x's shape and dtype; in a rule each draw takes the next key."""
    return apply(ops.NORMAL_LIKE, _draw_key(x, key), x)


def _draw_key(x: Tensor, key: Any) -> Any:
    if key is None and isinstance(x, Value):
        return x.trace.next_key()
    return key
