"""JAX's dialect, elementwise functions and activations; see `capture.py`."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy import special

from multigrad.capture import composites
from multigrad.capture import numpy as np_dialect
from multigrad.ir.types import BOOL
from multigrad.tracing import xp_all as xp
from multigrad.tracing.trace import Value

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


def isposinf(x: Tensor) -> Tensor:
    return xp.equal(x, math.inf)


def isneginf(x: Tensor) -> Tensor:
    return xp.equal(x, -math.inf)


def divmod_(x1: Any, x2: Any) -> tuple[Tensor, Tensor]:
    return xp.floor_divide(x1, x2), xp.remainder(x1, x2)


def round_(a: Tensor, decimals: int = 0) -> Tensor:
    return np_dialect.round_(a, decimals)


def identity(x: Tensor) -> Tensor:
    return x


def signbit(x: Tensor) -> Tensor:
    return xp.signbit(x)


def nan_to_num(
    x: Tensor, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> Tensor:
    return xp.nan_to_num(x, nan, posinf, neginf)


# --- jax.nn ---------------------------------------------------------------------------------------
def elu(x: Tensor, alpha: Any = 1.0) -> Tensor:
    if isinstance(alpha, Value):
        return xp.where(x > 0, x, alpha * xp.expm1(xp.where(x > 0, 0.0, x)))
    return xp.elu(x, alpha)


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return xp.celu(x, alpha)


def gelu(x: Tensor, approximate: bool = True) -> Tensor:
    return xp.gelu(x, approximate)


def squareplus(x: Tensor, b: float = 4) -> Tensor:
    return xp.squareplus(x, b)


# --- jax.scipy.special ----------------------------------------------------------------------------
def log_ndtr(x: Tensor, series_order: int = 3) -> Tensor:
    return xp.log_ndtr(x)


ALIASES: dict[Any, Any] = {
    jnp.isposinf: isposinf, jnp.isneginf: isneginf, jnp.positive: identity, jnp.conj: identity,
    jnp.conjugate: identity, jnp.real: identity, jnp.round: round_, jnp.around: round_,
    jnp.signbit: signbit, jnp.nan_to_num: nan_to_num,
    jnp.divmod: divmod_, jnp.heaviside: np_dialect.heaviside, jnp.where: where,
    jnp.select: np_dialect.select, jnp.piecewise: piecewise,
    jax.nn.celu: celu, jax.nn.elu: elu, jax.nn.gelu: gelu,
    jax.nn.identity: identity, jax.nn.squareplus: squareplus,
    special.entr: composites.entr, special.log_ndtr: log_ndtr,
}  # fmt: skip
