"""JAX's dialect, `jax.lax`: strict functions, all operands and axes given; see `table.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from multigrad.capture.code.binding import Library
from multigrad.capture.control import control
from multigrad.capture.meanings import arrays
from multigrad.capture.values import elementwise
from multigrad.trace import trace
from multigrad.trace.trace import cast
from multigrad.trace.xp import all as xp

from .arrays import JAX
from .elementwise import as_condition, floor_divide

Tensor = Any


def select(pred: Tensor, on_true: Any, on_false: Any) -> Tensor:
    return xp.where(as_condition(pred), on_true, on_false)


def select_n(which: Tensor, *cases: Any) -> Tensor:
    if len(cases) != 2:
        raise TypeError(f"select_n with {len(cases)} cases; two are known")
    return xp.where(as_condition(which), cases[1], cases[0])


def round_(x: Tensor, rounding_method: Any = lax.RoundingMethod.AWAY_FROM_ZERO) -> Tensor:
    """Halves go away from zero, unless they are to go to the even number."""
    if rounding_method == lax.RoundingMethod.TO_NEAREST_EVEN:
        return xp.round(x)
    whole = xp.trunc(x)
    return xp.where(xp.abs(x - whole) >= 0.5, whole + xp.sign(x), whole)


def full_like(x: Tensor, fill_value: Any, dtype: Any = None) -> Tensor:
    if isinstance(dtype, int | float):
        raise TypeError(f"full_like with dtype={dtype}, a number")
    return xp.full_like(x, fill_value, dtype)


def identity(x: Tensor, /) -> Tensor:
    return x


# --- along axes -----------------------------------------------------------------------------------
def div(x: Tensor, y: Tensor) -> Tensor:
    """Of integers the quotient, rounded towards zero."""
    whole = elementwise.is_whole(x) and elementwise.is_whole(y)
    return elementwise.quotient(x, y, floor_divide) if whole else xp.divide(x, y)


def _along(function: Callable[..., Tensor], x: Tensor, axis: int, reverse: bool) -> Tensor:
    return xp.flip(function(xp.flip(x, axis), axis), axis) if reverse else function(x, axis)


def cumsum(operand: Tensor, axis: int = 0, reverse: bool = False) -> Tensor:
    return _along(xp.cumsum, operand, axis, reverse)


def cumprod(operand: Tensor, axis: int = 0, reverse: bool = False) -> Tensor:
    return _along(xp.cumprod, operand, axis, reverse)


def cummax(operand: Tensor, axis: int = 0, reverse: bool = False) -> Tensor:
    return _along(xp.cummax, operand, axis, reverse)


def cummin(operand: Tensor, axis: int = 0, reverse: bool = False) -> Tensor:
    return _along(xp.cummin, operand, axis, reverse)


# --- shapes ---------------------------------------------------------------------------------------
def expand_dims(array: Tensor, dimensions: Sequence[int]) -> Tensor:
    for axis in sorted(dimensions):
        array = xp.expand_dims(array, axis)
    return array


def reshape(operand: Tensor, new_sizes: Any, dimensions: None = None) -> Tensor:
    if dimensions is not None:
        raise TypeError("reshape with dimensions; transpose first")
    return arrays.reshape(operand, new_sizes)


def slice_in_dim(
    operand: Tensor, start_index: Any, limit_index: Any, stride: int = 1, axis: int = 0
) -> Tensor:
    return xp.getitem(operand, _at(slice(start_index, limit_index, stride), axis))


def index_in_dim(operand: Tensor, index: int, axis: int = 0, keepdims: bool = True) -> Tensor:
    taken = xp.getitem(operand, _at(index, axis))
    return xp.expand_dims(taken, axis) if keepdims else taken


def _at(item: Any, axis: int) -> tuple[Any, ...]:
    """Return an index that picks along one axis."""
    whole = slice(None)
    return (..., item, *(whole,) * (-axis - 1)) if axis < 0 else (*(whole,) * axis, item)


def dot(
    lhs: Tensor, rhs: Tensor, *, precision: Any = None, preferred_element_type: Any = None
) -> Any:
    product = arrays.np_dot(lhs, rhs)
    return product if preferred_element_type is None else cast(product, preferred_element_type)


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
                permute_dims: transpose; polygamma; pow: integer_pow; prod: reduce_prod; sigmoid:
                logistic; sort; squeeze; sum: reduce_sum; tanh
            """
        }
    ),
    **JAX.taking_the_same(
        {
            __name__: """
                lax.full_like; identity: lax.optimization_barrier; round_:
                lax.round; lax.select; lax.select_n; lax.div; lax.cumsum; lax.cumprod; lax.cummax;
                lax.cummin; lax.expand_dims; lax.reshape; lax.slice_in_dim; lax.index_in_dim;
                lax.dot; lax.fori_loop
            """,
        }
    ),
}
