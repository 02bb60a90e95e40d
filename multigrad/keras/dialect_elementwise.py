"""Keras's dialect, elementwise functions and activations; see `dialect.py`.

Rows are keyed by the public name in `keras.ops`, `keras.activations`: what the installed Keras lacks is left out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from multigrad.capture import methods
from multigrad.capture import numpy as numpy_dialect
from multigrad.ir import neutral
from multigrad.ir.record import Value, cast
from multigrad.ir.types import BOOL

Tensor = Any
Handler = Callable[..., Any]


def taking(names: str, table: Mapping[str, Handler]) -> dict[str, Handler]:
    """Return a table whose functions take these keywords, in this order, beside positional arguments."""
    words = tuple(names.split())
    return {name: functools.partial(call, function, words) for name, function in table.items()}


def call(function: Handler, names: tuple[str, ...], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function whose parameters Keras names otherwise."""
    by_name = [kwargs.pop(name) for name in names[len(args) :] if name in kwargs]
    return function(*args, *by_name, **kwargs)


def isposinf(x: Tensor) -> Tensor:
    return neutral.equal(x, math.inf)


def isneginf(x: Tensor) -> Tensor:
    return neutral.equal(x, -math.inf)


def isclose(x1: Tensor, x2: Tensor, rtol: Any = 1e-5, atol: Any = 1e-8,
            equal_nan: bool = False) -> Tensor:  # fmt: skip
    """Equal, or finite and no further apart than atol + rtol |x2|."""
    limit = neutral.add(atol, neutral.multiply(rtol, neutral.abs(x2)))
    near = neutral.less_equal(neutral.abs(neutral.subtract(x1, x2)), limit)
    finite = neutral.isfinite(x1) & neutral.isfinite(x2)
    close = neutral.equal(x1, x2) | (near & finite)
    return close | (neutral.isnan(x1) & neutral.isnan(x2)) if equal_nan else close


def allclose(x1: Tensor, x2: Tensor, rtol: Any = 1e-5, atol: Any = 1e-8,
             equal_nan: bool = False) -> Tensor:  # fmt: skip
    return neutral.all(isclose(x1, x2, rtol, atol, equal_nan))


def divide_no_nan(x1: Tensor, x2: Tensor) -> Tensor:
    """x1 / x2, and 0 where x2 is 0."""
    is_zero = neutral.equal(x2, 0)
    return neutral.where(is_zero, 0.0, neutral.divide(x1, neutral.where(is_zero, 1.0, x2)))


def logaddexp2(x1: Tensor, x2: Tensor) -> Tensor:
    """log2(2^x1 + 2^x2)."""
    scale = math.log(2)
    sum_ = neutral.logaddexp(neutral.multiply(x1, scale), neutral.multiply(x2, scale))
    return neutral.divide(sum_, scale)


def round_(x: Tensor, decimals: int = 0) -> Tensor:
    return numpy_dialect.round_(x, decimals)


def where(condition: Tensor, x1: Any = None, x2: Any = None) -> Tensor:
    if x1 is None or x2 is None:
        raise TypeError("where without x1 and x2 gives indices")
    return neutral.where(as_bool(condition), x1, x2)


def as_bool(x: Any) -> Any:
    """Keras's logic takes numbers too: all but 0 are true."""
    return cast(x, BOOL) if isinstance(x, Value) else x


def logical_and(x1: Tensor, x2: Tensor) -> Tensor:
    return neutral.logical_and(as_bool(x1), as_bool(x2))


def logical_or(x1: Tensor, x2: Tensor) -> Tensor:
    return neutral.logical_or(as_bool(x1), as_bool(x2))


def logical_xor(x1: Tensor, x2: Tensor) -> Tensor:
    return neutral.logical_xor(as_bool(x1), as_bool(x2))


def logical_not(x: Tensor) -> Tensor:
    return neutral.logical_not(as_bool(x))


def real(x: Tensor) -> Tensor:
    """The tensors of a rule are real."""
    return methods.clone(x)


def isreal(x: Tensor) -> Tensor:
    return neutral.ones_like(x, "bool")


# --- activations -------------------------------------------------------------------------------------
def leaky_relu(x: Tensor, negative_slope: float = 0.2) -> Tensor:
    return neutral.leaky_relu(x, negative_slope)


def gelu(x: Tensor, approximate: bool = True) -> Tensor:
    return neutral.gelu(x, approximate)


def exact_gelu(x: Tensor, approximate: bool = False) -> Tensor:
    """`keras.activations.gelu`, whose default is not that of `keras.ops.gelu`."""
    return neutral.gelu(x, approximate)


def hard_shrink(x: Tensor, threshold: float = 0.5) -> Tensor:
    return neutral.hard_shrink(x, threshold)


def soft_shrink(x: Tensor, threshold: float = 0.5) -> Tensor:
    return neutral.soft_shrink(x, threshold)


def hard_tanh(x: Tensor) -> Tensor:
    return neutral.hard_tanh(x)


def threshold(x: Tensor, threshold: float, default_value: float) -> Tensor:
    return neutral.threshold(x, threshold, default_value)


def general_relu(x: Tensor, negative_slope: Any = 0.0, max_value: Any = None,
                 threshold: Any = 0.0) -> Tensor:  # fmt: skip
    """`keras.activations.relu`: x above the threshold, up to max_value; a slope below it."""
    if all(type(n) in (int, float) and n == 0 for n in (negative_slope, threshold)):
        return neutral.relu(x) if max_value is None else neutral.clip(x, 0.0, max_value)
    above = neutral.where(neutral.greater(x, threshold), x, 0.0)
    if max_value is not None:
        above = neutral.clip(above, 0.0, max_value)
    below = neutral.minimum(neutral.subtract(x, threshold), 0.0)
    return neutral.add(above, neutral.multiply(negative_slope, below))


def linear(x: Tensor) -> Tensor:
    return x


UNARY: dict[str, Handler] = {
    "abs": neutral.abs, "absolute": neutral.abs, "arccos": neutral.acos, "arccosh": neutral.acosh,
    "arcsin": neutral.asin, "arcsinh": neutral.asinh, "arctan": neutral.atan,
    "arctanh": neutral.atanh, "bitwise_invert": neutral.bitwise_invert,
    "bitwise_not": neutral.bitwise_invert, "cbrt": neutral.cbrt, "ceil": neutral.ceil,
    "conj": real, "conjugate": real, "copy": methods.clone, "cos": neutral.cos,
    "cosh": neutral.cosh, "deg2rad": neutral.deg2rad, "erf": neutral.erf, "erfc": neutral.erfc,
    "erfinv": neutral.erfinv, "exp": neutral.exp, "exp2": neutral.exp2, "expm1": neutral.expm1,
    "fabs": neutral.abs, "floor": neutral.floor, "isfinite": neutral.isfinite,
    "isinf": neutral.isinf, "isnan": neutral.isnan, "isneginf": isneginf, "isposinf": isposinf,
    "isreal": isreal, "log": neutral.log, "log10": neutral.log10, "log1p": neutral.log1p,
    "log2": neutral.log2, "logical_not": logical_not, "nan_to_num": neutral.nan_to_num,
    "negative": neutral.negative, "rad2deg": neutral.rad2deg, "real": real,
    "reciprocal": neutral.reciprocal, "round": round_, "rsqrt": neutral.rsqrt,
    "sign": neutral.sign, "signbit": neutral.signbit, "sin": neutral.sin, "sinc": neutral.sinc,
    "sinh": neutral.sinh, "sqrt": neutral.sqrt, "square": neutral.square, "tan": neutral.tan,
    "tanh": neutral.tanh, "trunc": neutral.trunc,
}  # fmt: skip

BINARY: dict[str, Handler] = {
    "add": neutral.add, "arctan2": neutral.atan2, "divide": neutral.divide,
    "divide_no_nan": divide_no_nan, "equal": neutral.equal, "floor_divide": neutral.floor_divide,
    "fmax": neutral.fmax, "fmin": neutral.fmin, "fmod": neutral.fmod, "greater": neutral.greater,
    "greater_equal": neutral.greater_equal, "heaviside": numpy_dialect.heaviside,
    "hypot": neutral.hypot, "less": neutral.less, "less_equal": neutral.less_equal,
    "logaddexp": neutral.logaddexp, "logaddexp2": logaddexp2, "logical_and": logical_and,
    "logical_or": logical_or, "logical_xor": logical_xor,
    "maximum": neutral.maximum, "minimum": neutral.minimum, "mod": neutral.remainder,
    "multiply": neutral.multiply, "not_equal": neutral.not_equal, "power": neutral.pow,
    "subtract": neutral.subtract, "true_divide": neutral.divide,
}  # fmt: skip

BITWISE: dict[str, Handler] = {
    "bitwise_and": neutral.bitwise_and, "bitwise_left_shift": neutral.bitwise_left_shift,
    "bitwise_or": neutral.bitwise_or, "bitwise_right_shift": neutral.bitwise_right_shift,
    "bitwise_xor": neutral.bitwise_xor, "left_shift": neutral.bitwise_left_shift,
    "right_shift": neutral.bitwise_right_shift,
}  # fmt: skip

# In keras.ops and in keras.activations, with the same defaults.
SHARED_ACTIVATIONS: dict[str, Handler] = {
    "celu": neutral.celu, "elu": neutral.elu, "glu": neutral.glu, "hard_shrink": hard_shrink,
    "hard_sigmoid": neutral.hard_sigmoid, "hard_silu": neutral.hard_silu,
    "hard_swish": neutral.hard_silu, "hard_tanh": hard_tanh, "leaky_relu": leaky_relu,
    "log_sigmoid": neutral.log_sigmoid, "log_softmax": neutral.log_softmax,
    "relu6": neutral.relu6, "selu": neutral.selu, "sigmoid": neutral.sigmoid,
    "silu": neutral.silu, "soft_shrink": soft_shrink, "softmax": neutral.softmax,
    "softplus": neutral.softplus, "softsign": neutral.soft_sign,
    "sparse_plus": neutral.sparse_plus, "sparse_sigmoid": neutral.sparse_sigmoid,
    "squareplus": neutral.squareplus, "swish": neutral.silu, "tanh_shrink": neutral.tanh_shrink,
    "threshold": threshold,
}  # fmt: skip

OPS: dict[str, Handler] = {
    **UNARY, **taking("x1 x2", BINARY), **taking("x y", BITWISE), **SHARED_ACTIVATIONS,
    "allclose": allclose, "gelu": gelu, "isclose": isclose, "relu": neutral.relu, "where": where,
    **taking("x x_min x_max", {"clip": neutral.clip}),
    **taking("condlist choicelist default", {"select": numpy_dialect.select}),
}  # fmt: skip

ACTIVATIONS: dict[str, Handler] = {
    **SHARED_ACTIVATIONS,
    "exponential": neutral.exp, "gelu": exact_gelu, "linear": linear, "mish": neutral.mish,
    "relu": general_relu, "tanh": neutral.tanh,
}  # fmt: skip
