"""JAX's dialect, elementwise functions, activations and `jax.lax`; see `table.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax

from multigrad.capture.code.binding import Library
from multigrad.capture.control import control
from multigrad.capture.dialects import numpy as np_dialect
from multigrad.capture.meanings import composites
from multigrad.capture.meanings.composites import is_whole, quotient
from multigrad.capture.symbols.dtypes import is_bool
from multigrad.graph.ir.types import BOOL, INT32
from multigrad.trace import trace
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


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    if not isinstance(alpha, Value) and alpha == 0:  # 0 / 0 on the way
        return xp.maximum(x, 0.0) + alpha * xp.expm1(xp.minimum(x, 0.0) / alpha)
    return xp.celu(x, alpha)


# --- jax.lax: strict functions, all operands and axes given ---------------------------------------
def select(pred: Tensor, on_true: Any, on_false: Any) -> Tensor:
    return xp.where(as_condition(pred), on_true, on_false)


def full_like(x: Tensor, fill_value: Any, dtype: Any = None) -> Tensor:
    if isinstance(dtype, int | float):
        raise TypeError(f"full_like with dtype={dtype}, a number")
    return xp.full_like(x, fill_value, dtype)


def div(x: Tensor, y: Tensor) -> Tensor:
    """Of integers the quotient, rounded towards zero."""
    whole = is_whole(x) and is_whole(y)
    return quotient(x, y, floor_divide) if whole else xp.divide(x, y)


def fori_loop(
    lower: int, upper: int, body_fun: Callable[..., Any], init_val: Any, *, unroll: Any = None
) -> Any:
    """The loop unrolled.

    Raises:
        TypeError: it is larger than what is unrolled.
    """
    value, size = init_val, control.Size(init_val)
    for i in range(lower, upper):
        value = body_fun(i, value)
        size.add(value)
    return value


AXES = ("axes", "dimensions", "permutation")
ALIASES: dict[Any, Any] = {
    **JAX.called({trace: "cast: lax.convert_element_type(operand=x)"}),
    **Library(lax, values=dict.fromkeys(AXES, tuple)).called(
        {
            xp: """
                all: reduce_and; any: reduce_or; concatenate; exp; expm1; flip: rev; log;
                logcumsumexp: cumlogsumexp; matmul: batch_matmul; max: reduce_max; min: reduce_min;
                permute_dims: transpose; pow: integer_pow; prod: reduce_prod; sigmoid: logistic;
                sort; squeeze; sum: reduce_sum; tanh
            """
        }
    ),
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
                nn.celu; floor_divide; fmod; identity: positive conj conjugate real nn.identity
                lax.optimization_barrier; lax.div; lax.fori_loop; lax.full_like; lax.rem;
                lax.select; where
            """,
        }
    ),
}
