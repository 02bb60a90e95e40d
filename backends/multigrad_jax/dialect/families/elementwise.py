"""JAX's dialect, elementwise functions and activations; see `table.py`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from multigrad.capture.dialects import numpy as np_dialect
from multigrad.capture.meanings import composites
from multigrad.capture.symbols.dtypes import is_bool
from multigrad.capture.values.elementwise import is_whole
from multigrad.graph.ir.types import BOOL, INT32
from multigrad.trace.trace import Value, cast
from multigrad.trace.xp import all as xp

from .arrays import JAX

Tensor = Any


def as_condition(condition: Any) -> Any:
    """jax takes any number for a condition."""
    if isinstance(condition, Value) and condition.node.type.dtype != BOOL:
        return condition != 0
    return condition


def where(condition: Any, x: Any = None, y: Any = None) -> Tensor:
    if x is None or y is None:
        raise TypeError("where with a condition alone gives indices; give both values")
    return xp.where(as_condition(condition), x, y)


def piecewise(x: Tensor, condlist: Any, funclist: Any) -> Tensor:
    """The value or function of the last condition that holds; else 0, or one more value."""
    conditions = list(condlist) if isinstance(condlist, list | tuple) else [condlist]
    values = [f(x) if callable(f) else f for f in funclist]
    result: Any = 0.0
    if len(values) == len(conditions) + 1:
        result = values.pop()
    for condition, value in zip(conditions, values, strict=True):
        result = xp.where(condition, value, result)
    return result if isinstance(result, Value) else xp.full_like(x, result)


def floor_divide(x1: Any, x2: Any) -> Tensor:
    """Of integers by zero it is XLA's quotient -1, less one where x1 is not zero."""
    x1, x2 = counted(x1, x2)
    quotient = xp.floor_divide(x1, x2)
    may_be_zero = isinstance(x2, Value) or not np.all(x2)
    if not (is_whole(x1) and is_whole(x2) and may_be_zero):
        return quotient
    if quotient.node.type.dtype == "uint8":
        by_zero: Any = 255
    else:
        dtype = quotient.node.type.dtype
        by_zero = (
            cast(xp.where(xp.equal(x1, 0), -1, -2), dtype)
            if isinstance(x1, Value)
            else -1 - (x1 != 0)
        )
    return xp.where(True if isinstance(x2, int) else xp.equal(x2, 0), by_zero, quotient)


def divmod_(x1: Any, x2: Any) -> tuple[Tensor, Tensor]:
    x1, x2 = counted(x1, x2)
    return floor_divide(x1, x2), xp.remainder(x1, x2)


def counted(x1: Any, x2: Any) -> tuple[Any, Any]:
    """Return two tensors of bools as the integers that jax divides."""
    return (cast(x1, INT32), cast(x2, INT32)) if is_bool(x1) and is_bool(x2) else (x1, x2)


def fmod(x1: Any, x2: Any) -> Tensor:
    """Of bools XLA's remainder by zero, which is x1; that by one is zero."""
    if is_bool(x1) and is_bool(x2):
        return cast(xp.logical_and(x1, xp.logical_not(x2)), INT32)
    return xp.fmod(x1, x2)


def rem(x: Any, y: Any) -> Tensor:
    """Of integers by zero it is x."""
    found = xp.fmod(x, y)
    return xp.where(xp.equal(y, 0), x, found) if is_whole(x) and is_whole(y) else found


def identity(x: Tensor) -> Tensor:
    return x


# --- jax.nn ---------------------------------------------------------------------------------------
def elu(x: Tensor, alpha: Any = 1.0) -> Tensor:
    if isinstance(alpha, Value):
        return xp.where(x > 0, x, alpha * xp.expm1(xp.where(x > 0, 0.0, x)))
    return xp.elu(x, alpha)


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    if not isinstance(alpha, Value) and alpha == 0:  # 0 / 0 on the way
        return xp.maximum(x, 0.0) + alpha * xp.expm1(xp.minimum(x, 0.0) / alpha)
    return xp.celu(x, alpha)


def log_sigmoid(x: Tensor) -> Tensor:
    """Of integers their negatives, which wrap around where they have no sign."""
    return -xp.softplus(-x) if is_whole(x) else xp.log_sigmoid(x)


def squareplus(x: Tensor, b: float = 4) -> Tensor:
    """Integers are squared as such, and wrap around."""
    if is_whole(x):
        return (x + xp.sqrt(xp.square(x) + b)) / 2
    return xp.squareplus(x, b)


# --- jax.scipy.special ----------------------------------------------------------------------------
def polygamma(n: Any, x: Tensor) -> Tensor:
    """At its poles XLA gives NaN, where the order is even."""
    return composites.polygamma(n, x, math.nan)


ALIASES: dict[Any, Any] = {
    **JAX.called(
        {
            np_dialect: "round_: round around",
            xp: """
                gelu: nn.gelu; log_ndtr: special.log_ndtr(series_order=); nan_to_num(copy=); signbit
            """,
        }
    ),
    **JAX.taking_the_same(
        {
            composites: """
                digamma: lax.digamma special.digamma; entr: special.entr; isneginf; isposinf
            """,
            np_dialect: "heaviside; select",
            __name__: """
                nn.celu; divmod_: divmod; nn.elu; floor_divide; fmod; identity: positive conj
                conjugate real nn.identity; nn.log_sigmoid; special.polygamma; piecewise;
                nn.squareplus; lax.rem; where
            """,
        }
    ),
}
