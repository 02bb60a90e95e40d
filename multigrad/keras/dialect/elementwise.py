"""Keras's dialect, elementwise functions and activations; see `table.py`.

Rows are keyed by the public name in `keras.ops`, `keras.activations`, or by the function: what the
installed Keras lacks is left out.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from multigrad.capture.code.binding import Library
from multigrad.capture.code.names import handlers, spelled
from multigrad.capture.dialects import numpy as numpy_dialect
from multigrad.capture.meanings import composites
from multigrad.capture.symbols.dtypes import own_dtype
from multigrad.capture.values import elementwise
from multigrad.graph.ir.types import BOOL, FLOATS, INT32, INT64, WHOLE, T
from multigrad.trace.trace import Value, cast, copy_of
from multigrad.trace.xp import all as xp

from .asked import close_in, floors_quotients, log_of_2_in_sums, takes_lower_limit

Tensor = Any
Handler = Callable[..., Any]
KERAS = Library(keras.ops)


def divide_no_nan(x1: Tensor, x2: Tensor) -> Tensor:
    """x1 / x2, and 0 where x2 is 0."""
    is_zero = xp.equal(x2, 0)
    return xp.where(is_zero, 0.0, xp.divide(x1, xp.where(is_zero, 1.0, x2)))


def where(condition: Tensor, x1: Any = None, x2: Any = None) -> Tensor:
    if x1 is None or x2 is None:
        raise TypeError("where without x1 and x2 gives indices")
    return xp.where(as_bool(condition), x1, x2)


def as_bool(x: Any) -> Any:
    """Keras's logic takes numbers too: all but 0 are true."""
    return cast(x, BOOL) if isinstance(x, Value) else x


def of_bools(function: Handler) -> Handler:
    """Return a function of two bools, which takes numbers too."""

    @functools.wraps(function)
    def record(x1: Tensor, x2: Tensor) -> Tensor:
        return function(as_bool(x1), as_bool(x2))

    return record


def logical_not(x: Tensor) -> Tensor:
    return xp.logical_not(as_bool(x))


def isreal(x: Tensor) -> Tensor:
    return xp.ones_like(x, "bool")


def copy(x: Any) -> Tensor:
    """The real part and the conjugate, too; a list is what it stacks to."""
    return xp.stack(x, 0) if isinstance(x, list | tuple) else copy_of(x)


def of_angles(function: Handler) -> Handler:
    """Return a conversion of angles, which Keras on torch makes of int64 in float32."""

    @functools.wraps(function)
    def record(x: Tensor) -> Tensor:
        if own_dtype(x) == INT64:
            raise TypeError("int64, which Keras rounds to float32 on torch: cast to float64 first")
        return function(x)

    return record


def of_floats(product: Handler) -> Handler:
    """Return a product, which Keras makes of integers in floats."""

    @functools.wraps(product)
    def record(x1: Any, x2: Any, *args: Any) -> Tensor:
        if {own_dtype(x1), own_dtype(x2)} & {*WHOLE}:
            raise TypeError("integers, which Keras multiplies in floats: cast them first")
        return product(x1, x2, *args)

    return record


def together(function: Handler) -> Handler:
    """Return a function of two integers in one dtype: Keras casts int64 beside others to int32."""

    @functools.wraps(function)
    def record(x1: Any, x2: Any) -> Tensor:
        dtype = expected(x1, x2)
        if dtype and all(own_dtype(x) in WHOLE or isinstance(x, int) for x in (x1, x2)):
            x1, x2 = cast(x1, dtype), cast(x2, dtype)
        return function(x1, x2)

    return record


def expected(*operands: Any) -> str:
    """Return the dtype that Keras gives the call that is recorded, int64 where it does not say."""
    trace = next(x.trace for x in operands if isinstance(x, Value))
    return "" if trace.types is None else trace.types.expected or INT64


def floor_divide(x1: Any, x2: Any) -> Tensor:
    """Of floats Keras casts the quotient, not the operands."""
    dtype = expected(x1, x2)
    if dtype in (T, *FLOATS) and floors_quotients():
        quotient = xp.floor(xp.divide(x1, x2))
    else:
        quotient = xp.floor_divide(x1, x2)
    return cast(quotient, dtype) if dtype in (T, *FLOATS) else quotient


def isclose(
    x1: Tensor, x2: Tensor, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Integers are equal or not, or, on some backends, close as floats."""
    if isinstance(rtol, Value) or isinstance(atol, Value):
        raise TypeError("a tolerance that is a tensor, which Keras rounds to another dtype")
    kinds = {own_dtype(x) for x in (x1, x2) if not isinstance(x, int)}
    has_number = any(isinstance(x, int) for x in (x1, x2))
    narrows = has_number and keras.backend.result_type(INT64, INT32) != INT64
    is_cast = (narrows and not close_in(INT64)) or len(kinds & {BOOL, *WHOLE}) > 1
    if INT64 in kinds and is_cast:
        raise TypeError("int64 beside another dtype, to which Keras casts it: cast it first")
    if kinds <= {BOOL, *WHOLE}:
        dtype = close_in(*kinds) if len(kinds) == 1 else close_in(INT32)
        if not dtype:
            return xp.equal(x1, x2)
        x1, x2 = cast(x1, dtype), cast(x2, dtype)
    return composites.isclose(x1, x2, rtol, atol, equal_nan)


def allclose(
    x1: Tensor, x2: Tensor, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False
) -> Tensor:
    return xp.all(isclose(x1, x2, rtol, atol, equal_nan))


def full_like(x: Tensor, fill_value: Any, dtype: Any = None) -> Tensor:
    if isinstance(fill_value, list | tuple):
        raise TypeError("full_like of several values; use broadcast_to")
    return xp.full_like(x, fill_value, dtype)


def clip(x: Tensor, x_min: Any, x_max: Any) -> Tensor:
    """Of limits that cross the upper one is taken, on TensorFlow the lower one."""
    if takes_lower_limit() and (isinstance(x_min, Value) or isinstance(x_max, Value)):
        return xp.maximum(xp.minimum(x, x_max), x_min)
    return xp.clip(x, x_min, x_max)


def logaddexp2(x1: Any, x2: Any) -> Tensor:
    return composites.logaddexp2(x1, x2, log_of_2_in_sums())


# --- activations ----------------------------------------------------------------------------------
def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    if alpha == 0:
        raise TypeError("celu with alpha=0, which each backend of Keras divides by in its own way")
    return xp.celu(x, alpha)


def squareplus(x: Tensor, b: Any = 4) -> Tensor:
    """Integers are squared as such, and wrap around."""
    if own_dtype(x) in WHOLE:
        return (x + xp.sqrt(x * x + b)) / 2
    return xp.squareplus(x, b)


def with_sign(function: Handler) -> Handler:
    """Return an activation that compares with -1, which integers without a sign do not hold."""

    @functools.wraps(function)
    def record(x: Tensor) -> Tensor:
        if own_dtype(x) == "uint8":
            raise TypeError("integers without a sign, beside which Keras has -1: cast to a float")
        return function(x)

    return record


def general_relu(
    x: Tensor, negative_slope: Any = 0.0, max_value: Any = None, threshold: Any = 0.0
) -> Tensor:
    """`keras.activations.relu`: x above the threshold, up to max_value; a slope below it."""
    if all(type(n) in (int, float) and n == 0 for n in (negative_slope, threshold)):
        return xp.relu(x) if max_value is None else xp.clip(x, 0.0, max_value)
    above = xp.where(xp.greater(x, threshold), x, 0.0)
    if max_value is not None:
        above = xp.clip(above, 0.0, max_value)
    below = xp.minimum(xp.subtract(x, threshold), 0.0)
    return xp.add(above, xp.multiply(negative_slope, below))


def linear(x: Tensor) -> Tensor:
    return x


maximum, minimum = together(xp.maximum), together(xp.minimum)
fmax, fmin = together(xp.fmax), together(xp.fmin)
logical_and, logical_or = of_bools(xp.logical_and), of_bools(xp.logical_or)
logical_xor = of_bools(xp.logical_xor)
sparse_plus, sparse_sigmoid = with_sign(xp.sparse_plus), with_sign(xp.sparse_sigmoid)

UNARY: dict[str, Handler] = {
    **spelled("""
        neg: negative; square; sqrt; rsqrt; reciprocal; cbrt; abs: abs absolute fabs; sign; floor;
        ceil; trunc; exp; expm1; exp2; log; log1p; log2; log10; sin; cos; tan; asin: arcsin;
        acos: arccos; atan: arctan; sinh; cosh; tanh; asinh: arcsinh;
        acosh: arccosh; atanh: arctanh; erf; erfc; erfinv; sinc; isnan; isinf; isfinite; signbit;
        bitwise_invert: bitwise_invert bitwise_not; nan_to_num
    """),
    **handlers(
        {
            composites: "isneginf; isposinf",
            __name__: "copy: copy real conj conjugate; isreal; logical_not",
        }
    ),
    "deg2rad": of_angles(xp.deg2rad),
    "rad2deg": of_angles(xp.rad2deg),
}
# In keras.ops and in keras.activations.
SHARED_ACTIVATIONS: dict[str, Handler] = spelled("""
    sigmoid; log_sigmoid; silu: silu swish; softplus; relu6; elu; selu;
    soft_sign: softsign; tanh_shrink; hard_sigmoid; hard_silu: hard_silu hard_swish;
    softmax; log_softmax; glu
""")
SHARED: dict[Any, str] = {
    __name__: "celu; sparse_plus; sparse_sigmoid; squareplus",
    elementwise: "hard_shrink(threshold=lambd)",
    xp: """
        gelu; hard_tanh; leaky_relu(negative_slope=slope); soft_shrink(threshold=lambd); threshold
    """,
}
OPS: dict[str, Handler] = {
    **UNARY,
    **SHARED_ACTIVATIONS,
    **{f.__name__: f for f in (allclose, isclose, xp.relu, where)},
}
ACTIVATIONS: dict[str, Handler] = {
    **spelled("exp: exponential; tanh; mish"),
    **SHARED_ACTIVATIONS,
    "linear": linear,
    "relu": general_relu,
}
NAMED: dict[Any, Handler] = {
    **KERAS.called(SHARED),
    **Library(keras.activations).called(SHARED),
    **KERAS.called(
        {
            numpy_dialect: "heaviside; round_: round; select",
            __name__: """
                divide_no_nan; floor_divide; fmax; fmin; logaddexp2; logical_and; logical_or;
                logical_xor; clip; maximum; minimum
            """,
            xp: """
                add; subtract; multiply; divide: divide true_divide; pow: power; remainder: mod;
                fmod; hypot; atan2: arctan2; logaddexp; less; less_equal; greater; greater_equal;
                equal; not_equal; bitwise_and; bitwise_or; bitwise_xor; bitwise_left_shift:
                bitwise_left_shift left_shift; bitwise_right_shift: bitwise_right_shift right_shift;
            """,
        }
    ),
}
