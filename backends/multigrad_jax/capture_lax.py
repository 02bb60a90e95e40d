"""JAX's dialect, `jax.lax`: strict functions, all operands and axes given; see `capture.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from multigrad.capture import arrays, control, elementwise
from multigrad.tracing import xp_all as xp
from multigrad.tracing.trace import cast

from .capture_elementwise import as_condition

Tensor = Any


def exp(x: Tensor, *, accuracy: Any = None) -> Tensor:
    return xp.exp(x)


def expm1(x: Tensor, *, accuracy: Any = None) -> Tensor:
    return xp.expm1(x)


def log(x: Tensor, *, accuracy: Any = None) -> Tensor:
    return xp.log(x)


def tanh(x: Tensor, *, accuracy: Any = None) -> Tensor:
    return xp.tanh(x)


def logistic(x: Tensor, *, accuracy: Any = None) -> Tensor:
    return xp.sigmoid(x)


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


def integer_pow(x: Tensor, y: int) -> Tensor:
    return xp.pow(x, y)


def polygamma(m: int, x: Tensor) -> Tensor:
    return xp.polygamma(m, x)


def convert_element_type(operand: Tensor, new_dtype: Any) -> Tensor:
    return cast(operand, new_dtype)


def full_like(x: Tensor, fill_value: Any, dtype: Any = None) -> Tensor:
    return xp.full_like(x, fill_value, dtype)


def identity(x: Tensor, /) -> Tensor:
    return x


# --- along axes -----------------------------------------------------------------------------------
def reduce_sum(operand: Tensor, axes: Sequence[int]) -> Tensor:
    return xp.sum(operand, tuple(axes))


def div(x: Tensor, y: Tensor) -> Tensor:
    """Of integers the quotient, rounded towards zero."""
    whole = elementwise.is_whole(x) and elementwise.is_whole(y)
    return elementwise.quotient(x, y) if whole else xp.divide(x, y)


def reduce_prod(operand: Tensor, axes: Sequence[int]) -> Tensor:
    return xp.prod(operand, tuple(axes))


def reduce_max(operand: Tensor, axes: Sequence[int]) -> Tensor:
    return xp.max(operand, tuple(axes))


def reduce_min(operand: Tensor, axes: Sequence[int]) -> Tensor:
    return xp.min(operand, tuple(axes))


def reduce_and(operand: Tensor, axes: Sequence[int]) -> Tensor:
    return xp.all(operand, tuple(axes))


def reduce_or(operand: Tensor, axes: Sequence[int]) -> Tensor:
    return xp.any(operand, tuple(axes))


def _along(function: Callable[..., Tensor], x: Tensor, axis: int, reverse: bool) -> Tensor:
    return xp.flip(function(xp.flip(x, axis), axis), axis) if reverse else function(x, axis)


def cumsum(operand: Tensor, axis: int = 0, reverse: bool = False) -> Tensor:
    return _along(xp.cumsum, operand, axis, reverse)


def cumlogsumexp(operand: Tensor, axis: int = 0, reverse: bool = False) -> Tensor:
    return xp.logcumsumexp(operand, axis, reverse)


def cumprod(operand: Tensor, axis: int = 0, reverse: bool = False) -> Tensor:
    return _along(xp.cumprod, operand, axis, reverse)


def cummax(operand: Tensor, axis: int = 0, reverse: bool = False) -> Tensor:
    return _along(xp.cummax, operand, axis, reverse)


def cummin(operand: Tensor, axis: int = 0, reverse: bool = False) -> Tensor:
    return _along(xp.cummin, operand, axis, reverse)


def sort(operand: Tensor, dimension: int = -1, is_stable: bool = True) -> Tensor:
    return xp.sort(operand, dimension)


# --- shapes ---------------------------------------------------------------------------------------
def expand_dims(array: Tensor, dimensions: Sequence[int]) -> Tensor:
    for axis in sorted(dimensions):
        array = xp.expand_dims(array, axis)
    return array


def squeeze(array: Tensor, dimensions: Sequence[int]) -> Tensor:
    return xp.squeeze(array, tuple(dimensions))


def reshape(operand: Tensor, new_sizes: Any, dimensions: None = None) -> Tensor:
    if dimensions is not None:
        raise TypeError("reshape with dimensions; transpose first")
    return arrays.reshape(operand, new_sizes)


def transpose(operand: Tensor, permutation: Sequence[int]) -> Tensor:
    return xp.permute_dims(operand, tuple(permutation))


def rev(operand: Tensor, dimensions: Sequence[int]) -> Tensor:
    return xp.flip(operand, tuple(dimensions))


def concatenate(operands: Sequence[Tensor], dimension: int) -> Tensor:
    return xp.concatenate(operands, dimension)


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


def batch_matmul(lhs: Tensor, rhs: Tensor, precision: Any = None) -> Tensor:
    return xp.matmul(lhs, rhs)


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


ALIASES: dict[Any, Any] = {
    lax.convert_element_type: convert_element_type, lax.exp: exp,
    lax.expm1: expm1, lax.full_like: full_like, lax.integer_pow: integer_pow, lax.log: log,
    lax.logistic: logistic, lax.optimization_barrier: identity, lax.polygamma: polygamma,
    lax.round: round_, lax.select: select, lax.select_n: select_n, lax.tanh: tanh,
    lax.div: div, lax.reduce_sum: reduce_sum, lax.reduce_prod: reduce_prod,
    lax.reduce_max: reduce_max, lax.reduce_min: reduce_min, lax.reduce_and: reduce_and,
    lax.reduce_or: reduce_or,
    lax.cumlogsumexp: cumlogsumexp, lax.cumsum: cumsum, lax.cumprod: cumprod, lax.cummax: cummax,
    lax.cummin: cummin, lax.sort: sort, lax.expand_dims: expand_dims, lax.squeeze: squeeze,
    lax.reshape: reshape, lax.transpose: transpose, lax.rev: rev, lax.concatenate: concatenate,
    lax.slice_in_dim: slice_in_dim, lax.index_in_dim: index_in_dim, lax.dot: dot,
    lax.batch_matmul: batch_matmul, lax.fori_loop: fori_loop,
}  # fmt: skip
