"""JAX's dialect, functions whose derivative at a kink is another than that of the op; see
`table.py`. Where no derivative by ops is taken, the op itself stands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multigrad.capture.meanings.places import is_differentiated
from multigrad.capture.symbols.dtypes import is_bool as is_of_bools
from multigrad.trace.trace import Value
from multigrad.trace.xp import all as xp

from .arrays import JAX

Tensor = Any


def absolute(x: Tensor) -> Tensor:
    """Its slope at 0 is 1."""
    if not is_differentiated(x):
        return xp.abs(x)
    return xp.where(xp.equal(x, 0), x + 0.0, xp.abs(x))


def clip(arr: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """At a limit x gets half, as of equal operands of a maximum."""
    if not is_differentiated(arr):
        return xp.clip(arr, min, max)
    larger = arr if min is None else xp.maximum(arr, min)
    return larger if max is None else xp.minimum(larger, max)


def clamp(min: Any, x: Tensor, max: Any) -> Tensor:
    """At a limit nobody gets a gradient."""
    if is_of_bools(x):
        return xp.logical_and(xp.logical_or(x, min), max)
    if not is_differentiated(x):
        return xp.clip(x, min, max)
    is_inside = xp.logical_and(xp.greater(x, min), xp.less(x, max))
    inner = xp.where(is_inside, x, xp.stop_gradient(x))
    low = min
    if isinstance(min, Value) or isinstance(max, Value):  # of crossed limits neither gets one
        high = xp.stop_gradient(max) if isinstance(max, Value) else max
        low = xp.where(xp.less(min, max), min, high)
    limited = xp.where(xp.less(x, min), low, inner)
    return xp.where(xp.greater(limited if low is min else x, max), max, limited)


def hard_tanh(x: Tensor) -> Tensor:
    """Its slope at -1 and 1 is 1."""
    if not is_differentiated(x):
        return xp.hard_tanh(x)
    return xp.where(xp.less(x, -1.0), -1.0, xp.where(xp.greater(x, 1.0), 1.0, x))


ALIASES: dict[Any, Callable[..., Any]] = {
    **JAX.taking_the_same(
        {
            __name__: """
                absolute: abs absolute fabs lax.abs; clip; lax.clamp; nn.hard_tanh
            """,
        }
    ),
}
