"""Keras's dialect, elementwise functions and activations; see `dialect.py`.

Rows are keyed by the public name in `keras.ops`, `keras.activations`: what the installed Keras
lacks is left out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from multigrad.capture import composites, elementwise, methods
from multigrad.capture import numpy as numpy_dialect
from multigrad.capture.names import spelled
from multigrad.ir.types import BOOL
from multigrad.tracing import xp_all as xp
from multigrad.tracing.trace import Value, cast

Tensor = Any
Handler = Callable[..., Any]


def taking(names: str, table: Mapping[str, Handler]) -> dict[str, Handler]:
    """Return a table whose functions take these keywords too, in this order."""
    words = tuple(names.split())
    return {name: functools.partial(call, function, words) for name, function in table.items()}


def call(function: Handler, names: tuple[str, ...], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function whose parameters Keras names otherwise."""
    by_name = [kwargs.pop(name) for name in names[len(args) :] if name in kwargs]
    return function(*args, *by_name, **kwargs)


def isposinf(x: Tensor) -> Tensor:
    return xp.equal(x, math.inf)


def isneginf(x: Tensor) -> Tensor:
    return xp.equal(x, -math.inf)


def divide_no_nan(x1: Tensor, x2: Tensor) -> Tensor:
    """x1 / x2, and 0 where x2 is 0."""
    is_zero = xp.equal(x2, 0)
    return xp.where(is_zero, 0.0, xp.divide(x1, xp.where(is_zero, 1.0, x2)))


def round_(x: Tensor, decimals: int = 0) -> Tensor:
    return numpy_dialect.round_(x, decimals)


def where(condition: Tensor, x1: Any = None, x2: Any = None) -> Tensor:
    if x1 is None or x2 is None:
        raise TypeError("where without x1 and x2 gives indices")
    return xp.where(as_bool(condition), x1, x2)


def as_bool(x: Any) -> Any:
    """Keras's logic takes numbers too: all but 0 are true."""
    return cast(x, BOOL) if isinstance(x, Value) else x


def logical_and(x1: Tensor, x2: Tensor) -> Tensor:
    return xp.logical_and(as_bool(x1), as_bool(x2))


def logical_or(x1: Tensor, x2: Tensor) -> Tensor:
    return xp.logical_or(as_bool(x1), as_bool(x2))


def logical_xor(x1: Tensor, x2: Tensor) -> Tensor:
    return xp.logical_xor(as_bool(x1), as_bool(x2))


def logical_not(x: Tensor) -> Tensor:
    return xp.logical_not(as_bool(x))


def real(x: Tensor) -> Tensor:
    """The tensors of a rule are real."""
    return methods.clone(x)


def isreal(x: Tensor) -> Tensor:
    return xp.ones_like(x, "bool")


# --- activations ----------------------------------------------------------------------------------
def leaky_relu(x: Tensor, negative_slope: float = 0.2) -> Tensor:
    return xp.leaky_relu(x, negative_slope)


def gelu(x: Tensor, approximate: bool = True) -> Tensor:
    return xp.gelu(x, approximate)


def exact_gelu(x: Tensor, approximate: bool = False) -> Tensor:
    """`keras.activations.gelu`, whose default is not that of `keras.ops.gelu`."""
    return xp.gelu(x, approximate)


def hard_shrink(x: Tensor, threshold: float = 0.5) -> Tensor:
    return elementwise.hard_shrink(x, threshold)


def soft_shrink(x: Tensor, threshold: float = 0.5) -> Tensor:
    return xp.soft_shrink(x, threshold)


def hard_tanh(x: Tensor) -> Tensor:
    return xp.hard_tanh(x)


def threshold(x: Tensor, threshold: float, default_value: float) -> Tensor:
    return xp.threshold(x, threshold, default_value)


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


UNARY: dict[str, Handler] = {
    **spelled("""
        neg: negative; square; sqrt; rsqrt; reciprocal; cbrt; abs: abs absolute fabs; sign; floor;
        ceil; trunc; exp; expm1; exp2; log; log1p; log2; log10; sin; cos; tan; asin: arcsin;
        acos: arccos; atan: arctan; deg2rad; rad2deg; sinh; cosh; tanh; asinh: arcsinh;
        acosh: arccosh; atanh: arctanh; erf; erfc; erfinv; sinc; isnan; isinf; isfinite; signbit;
        bitwise_invert: bitwise_invert bitwise_not; nan_to_num
    """),
    **{f.__name__: f for f in (isneginf, isposinf, isreal, logical_not, real)},
    "conj": real,
    "conjugate": real,
    "copy": methods.clone,
    "round": round_,
}

BINARY: dict[str, Handler] = {
    **spelled("""
        add; sub: subtract; mul: multiply; div: divide true_divide; pow: power; maximum; minimum;
        fmax; fmin; floor_divide; remainder: mod; fmod; hypot; atan2: arctan2; logaddexp; lt: less;
        le: less_equal; gt: greater; ge: greater_equal; eq: equal; ne: not_equal
    """),
    **{f.__name__: f for f in (divide_no_nan, logical_and, logical_or, logical_xor)},
    "logaddexp2": composites.logaddexp2,
    "heaviside": numpy_dialect.heaviside,
}

BITWISE: dict[str, Handler] = {
    **spelled("""
        bitwise_and; bitwise_or; bitwise_xor; bitwise_left_shift: bitwise_left_shift left_shift;
        bitwise_right_shift: bitwise_right_shift right_shift
    """)
}

# In keras.ops and in keras.activations, with the same defaults.
SHARED_ACTIVATIONS: dict[str, Handler] = {
    **spelled("""
        sigmoid; log_sigmoid; silu: silu swish; softplus; relu6; elu; celu; selu; squareplus;
        sparse_plus; sparse_sigmoid; soft_sign: softsign; tanh_shrink; hard_sigmoid;
        hard_silu: hard_silu hard_swish; softmax; log_softmax; glu
    """),
    "hard_shrink": hard_shrink,
    "hard_tanh": hard_tanh,
    "leaky_relu": leaky_relu,
    "soft_shrink": soft_shrink,
    "threshold": threshold,
}

OPS: dict[str, Handler] = {
    **UNARY,
    **taking("x1 x2", BINARY),
    **taking("x y", BITWISE),
    **SHARED_ACTIVATIONS,
    **{f.__name__: f for f in (composites.allclose, gelu, composites.isclose, xp.relu, where)},
    **taking("x x_min x_max", {"clip": xp.clip}),
    **taking("condlist choicelist default", {"select": numpy_dialect.select}),
}

ACTIVATIONS: dict[str, Handler] = {
    **spelled("exp: exponential; tanh; mish"),
    **SHARED_ACTIVATIONS,
    "gelu": exact_gelu,
    "linear": linear,
    "relu": general_relu,
}
