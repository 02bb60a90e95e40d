"""The neutral dialect, ordering family; see `neutral.py`."""

from __future__ import annotations

from operator import index
from typing import Any

from . import ops
from .neutral_arrays import Axis, axes_of, one_axis
from .record import apply

Tensor = Any

__all__ = [
    "argmax_mask", "argmin_mask", "cummax", "cummin", "cumprod", "cumsum", "cumulative_prod",
    "cumulative_sum", "median", "quantile", "sort", "top_k_mask",
]  # fmt: skip


def cumsum(x: Tensor, axis: int = -1, reverse: bool = False) -> Tensor:
    """The sum of each element and those before it along an axis (`reverse`: after it)."""
    return apply(ops.CUMSUM, x, axis=one_axis(x, axis), reverse=bool(reverse))


def cumprod(x: Tensor, axis: int = -1) -> Tensor:
    """The product of each element and those before it along an axis."""
    return apply(ops.CUMPROD, x, axis=one_axis(x, axis))


def cummax(x: Tensor, axis: int = -1) -> Tensor:
    """The largest so far along an axis; of equal ones the latest takes the gradient."""
    return apply(ops.CUMMAX, x, axis=one_axis(x, axis))


def cummin(x: Tensor, axis: int = -1) -> Tensor:
    """The smallest so far along an axis; of equal ones the latest takes the gradient."""
    return apply(ops.CUMMIN, x, axis=one_axis(x, axis))


def cumulative_sum(x: Tensor, axis: int = -1) -> Tensor:
    """The Array API's name of `cumsum`."""
    return cumsum(x, axis)


def cumulative_prod(x: Tensor, axis: int = -1) -> Tensor:
    """The Array API's name of `cumprod`."""
    return cumprod(x, axis)


def sort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """x sorted along an axis; NaN is larger than every number."""
    return apply(ops.SORT, x, axis=one_axis(x, axis), descending=bool(descending))


def argmax_mask(x: Tensor, axis: int | None = None) -> Tensor:
    """True at the first of the largest, along an axis or of all."""
    return apply(ops.ARGMAX_MASK, x, axis=None if axis is None else one_axis(x, axis))


def argmin_mask(x: Tensor, axis: int | None = None) -> Tensor:
    """True at the first of the smallest, along an axis or of all."""
    return apply(ops.ARGMIN_MASK, x, axis=None if axis is None else one_axis(x, axis))


def top_k_mask(x: Tensor, k: int, axis: int = -1) -> Tensor:
    """True at the k largest along an axis, ties to the lower index; at all where there are fewer."""
    count = index(k)
    if count < 0:
        raise TypeError(f"top_k_mask marks k elements, at least 0, not {count}")
    return apply(ops.TOP_K_MASK, x, axis=one_axis(x, axis), k=count)


def median(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The middle value, the mean of the two middle ones where their number is even."""
    return apply(ops.MEDIAN, x, axis=axes_of(x, axis), keepdims=bool(keepdims))


def quantile(x: Tensor, q: float, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The q-quantile, 0 <= q <= 1, linear between neighbors."""
    if not (isinstance(q, int | float) and 0 <= q <= 1):
        raise TypeError(f"quantile takes a number from 0 to 1, not {q!r}")
    return apply(ops.QUANTILE, x, axis=axes_of(x, axis), keepdims=bool(keepdims), q=float(q))
