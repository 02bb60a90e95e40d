"""JAX's dialect, `jax.lax`: strict functions, whose operands and axes are all given; see `capture.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from multigrad.capture import arrays
from multigrad.ir import neutral
from multigrad.ir.record import cast

from .capture_elementwise import as_condition

Tensor = Any


def exp(x: Tensor, *, accuracy: Any = None) -> Tensor:
    return neutral.exp(x)


def expm1(x: Tensor, *, accuracy: Any = None) -> Tensor:
    return neutral.expm1(x)


def log(x: Tensor, *, accuracy: Any = None) -> Tensor:
    return neutral.log(x)


def tanh(x: Tensor, *, accuracy: Any = None) -> Tensor:
    return neutral.tanh(x)


def logistic(x: Tensor, *, accuracy: Any = None) -> Tensor:
    return neutral.sigmoid(x)


def clamp(min: Any, x: Tensor, max: Any) -> Tensor:
    return neutral.clip(x, min, max)


def select(pred: Tensor, on_true: Any, on_false: Any) -> Tensor:
    return neutral.where(as_condition(pred), on_true, on_false)


def select_n(which: Tensor, *cases: Any) -> Tensor:
    if len(cases) != 2:
        raise TypeError(f"select_n with {len(cases)} cases; two are known")
    return neutral.where(as_condition(which), cases[1], cases[0])


def round_(x: Tensor, rounding_method: Any = lax.RoundingMethod.AWAY_FROM_ZERO) -> Tensor:
    """Halves go away from zero, unless they are to go to the even number."""
    if rounding_method == lax.RoundingMethod.TO_NEAREST_EVEN:
        return neutral.round(x)
    whole = neutral.trunc(x)
    return neutral.where(neutral.abs(x - whole) >= 0.5, whole + neutral.sign(x), whole)


def integer_pow(x: Tensor, y: int) -> Tensor:
    return neutral.pow(x, y)


def polygamma(m: int, x: Tensor) -> Tensor:
    return neutral.polygamma(m, x)


def convert_element_type(operand: Tensor, new_dtype: Any) -> Tensor:
    return cast(operand, new_dtype)


def full_like(x: Tensor, fill_value: Any, dtype: Any = None) -> Tensor:
    return neutral.full_like(x, fill_value, dtype)


def identity(x: Tensor, /) -> Tensor:
    return x


# --- along axes ------------------------------------------------------------------------------------------------
def reduce_sum(operand: Tensor, axes: Sequence[int]) -> Tensor:
    return neutral.sum(operand, tuple(axes))


def reduce_prod(operand: Tensor, axes: Sequence[int]) -> Tensor:
    return neutral.prod(operand, tuple(axes))


def reduce_max(operand: Tensor, axes: Sequence[int]) -> Tensor:
    return neutral.max(operand, tuple(axes))


def reduce_min(operand: Tensor, axes: Sequence[int]) -> Tensor:
    return neutral.min(operand, tuple(axes))


def reduce_and(operand: Tensor, axes: Sequence[int]) -> Tensor:
    return neutral.all(operand, tuple(axes))


def reduce_or(operand: Tensor, axes: Sequence[int]) -> Tensor:
    return neutral.any(operand, tuple(axes))


def _along(function: Callable[..., Tensor], x: Tensor, axis: int, reverse: bool) -> Tensor:
    return (
        neutral.flip(function(neutral.flip(x, axis), axis), axis) if reverse else function(x, axis)
    )


def cumsum(operand: Tensor, axis: int = 0, reverse: bool = False) -> Tensor:
    return _along(neutral.cumsum, operand, axis, reverse)


def cumprod(operand: Tensor, axis: int = 0, reverse: bool = False) -> Tensor:
    return _along(neutral.cumprod, operand, axis, reverse)


def cummax(operand: Tensor, axis: int = 0, reverse: bool = False) -> Tensor:
    return _along(neutral.cummax, operand, axis, reverse)


def cummin(operand: Tensor, axis: int = 0, reverse: bool = False) -> Tensor:
    return _along(neutral.cummin, operand, axis, reverse)


def sort(operand: Tensor, dimension: int = -1, is_stable: bool = True) -> Tensor:
    return neutral.sort(operand, dimension)


# --- shapes ----------------------------------------------------------------------------------------------------
def expand_dims(array: Tensor, dimensions: Sequence[int]) -> Tensor:
    for axis in sorted(dimensions):
        array = neutral.expand_dims(array, axis)
    return array


def squeeze(array: Tensor, dimensions: Sequence[int]) -> Tensor:
    return neutral.squeeze(array, tuple(dimensions))


def reshape(operand: Tensor, new_sizes: Any, dimensions: None = None) -> Tensor:
    if dimensions is not None:
        raise TypeError("reshape with dimensions; transpose first")
    return arrays.reshape(operand, new_sizes)


def transpose(operand: Tensor, permutation: Sequence[int]) -> Tensor:
    return neutral.permute_dims(operand, tuple(permutation))


def rev(operand: Tensor, dimensions: Sequence[int]) -> Tensor:
    return neutral.flip(operand, tuple(dimensions))


def concatenate(operands: Sequence[Tensor], dimension: int) -> Tensor:
    return neutral.concatenate(operands, dimension)


def slice_in_dim(operand: Tensor, start_index: int | None, limit_index: int | None, stride: int = 1,
                 axis: int = 0) -> Tensor:  # fmt: skip
    return neutral.getitem(operand, _at(slice(start_index, limit_index, stride), axis))


def index_in_dim(operand: Tensor, index: int, axis: int = 0, keepdims: bool = True) -> Tensor:
    taken = neutral.getitem(operand, _at(index, axis))
    return neutral.expand_dims(taken, axis) if keepdims else taken


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
    return neutral.matmul(lhs, rhs)


def fori_loop(lower: int, upper: int, body_fun: Callable[[int, Any], Any], init_val: Any, *,
              unroll: Any = None) -> Any:  # fmt: skip
    """The loop unrolled; its bounds are Python's."""
    value = init_val
    for i in range(lower, upper):
        value = body_fun(i, value)
    return value


ALIASES: dict[Any, Any] = {
    lax.abs: neutral.abs, lax.acos: neutral.acos, lax.acosh: neutral.acosh, lax.add: neutral.add,
    lax.asin: neutral.asin, lax.asinh: neutral.asinh, lax.atan: neutral.atan,
    lax.atan2: neutral.atan2, lax.atanh: neutral.atanh, lax.bitwise_and: neutral.bitwise_and,
    lax.bitwise_not: neutral.bitwise_invert, lax.bitwise_or: neutral.bitwise_or,
    lax.bitwise_xor: neutral.bitwise_xor, lax.cbrt: neutral.cbrt, lax.ceil: neutral.ceil,
    lax.clamp: clamp, lax.convert_element_type: convert_element_type, lax.cos: neutral.cos,
    lax.cosh: neutral.cosh, lax.digamma: neutral.digamma, lax.div: neutral.divide,
    lax.eq: neutral.equal, lax.erf: neutral.erf, lax.erf_inv: neutral.erfinv,
    lax.erfc: neutral.erfc, lax.exp: exp, lax.exp2: neutral.exp2, lax.expm1: expm1,
    lax.floor: neutral.floor, lax.full_like: full_like, lax.ge: neutral.greater_equal,
    lax.gt: neutral.greater, lax.integer_pow: integer_pow, lax.is_finite: neutral.isfinite,
    lax.le: neutral.less_equal, lax.lgamma: neutral.lgamma, lax.log: log, lax.log1p: neutral.log1p,
    lax.logistic: logistic, lax.lt: neutral.less, lax.max: neutral.maximum,
    lax.min: neutral.minimum, lax.mul: neutral.multiply, lax.ne: neutral.not_equal,
    lax.neg: neutral.negative, lax.optimization_barrier: identity, lax.polygamma: polygamma,
    lax.pow: neutral.pow, lax.reciprocal: neutral.reciprocal, lax.rem: neutral.fmod,
    lax.round: round_, lax.rsqrt: neutral.rsqrt, lax.select: select, lax.select_n: select_n,
    lax.shift_left: neutral.bitwise_left_shift,
    lax.shift_right_arithmetic: neutral.bitwise_right_shift, lax.sign: neutral.sign,
    lax.sin: neutral.sin, lax.sinh: neutral.sinh, lax.sqrt: neutral.sqrt,
    lax.square: neutral.square, lax.stop_gradient: neutral.stop_gradient,
    lax.sub: neutral.subtract, lax.tan: neutral.tan, lax.tanh: tanh,
    lax.reduce_sum: reduce_sum, lax.reduce_prod: reduce_prod, lax.reduce_max: reduce_max,
    lax.reduce_min: reduce_min, lax.reduce_and: reduce_and, lax.reduce_or: reduce_or,
    lax.cumsum: cumsum, lax.cumprod: cumprod, lax.cummax: cummax, lax.cummin: cummin,
    lax.sort: sort, lax.expand_dims: expand_dims, lax.squeeze: squeeze, lax.reshape: reshape,
    lax.transpose: transpose, lax.rev: rev, lax.concatenate: concatenate,
    lax.slice_in_dim: slice_in_dim, lax.index_in_dim: index_in_dim, lax.dot: dot,
    lax.batch_matmul: batch_matmul, lax.fori_loop: fori_loop,
}  # fmt: skip
