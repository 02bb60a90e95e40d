"""The VJP of each op of the ordering family; see `pullbacks.py` for the form."""

from __future__ import annotations

from typing import Any

from .array_pullbacks import spread
from .pullbacks import Cotangents, zero

__all__ = ["zero"]  # the rows of every family read their VJPs from one module each


def cumsum(xp: Any, ct: Any, y: Any, x: Any, *, axis: int, reverse: bool) -> Cotangents:
    return (xp.cumsum(ct, axis=axis, reverse=not reverse),)


def cumprod(xp: Any, ct: Any, y: Any, x: Any, *, axis: int) -> Cotangents:
    """Right at zeros too: the first one's share is summed over products that leave it out.

    Of two zeros in one product the second derivative is lost, as in `prod`.
    """
    is_zero = xp.equal(x, 0)
    first = xp.logical_and(is_zero, xp.equal(xp.cumsum(is_zero * 1.0, axis=axis), 1))
    without = xp.cumprod(xp.where(first, 1.0, x), axis=axis)
    at_first = xp.cumsum(ct * without, axis=axis, reverse=True)
    elsewhere = xp.cumsum(ct * y, axis=axis, reverse=True) / xp.where(is_zero, 1.0, x)
    return (xp.where(first, at_first, xp.where(is_zero, 0.0, elsewhere)),)


def cumulative_extreme(xp: Any, ct: Any, y: Any, x: Any, *, axis: int) -> Cotangents:
    """Each result comes from the latest element that is equal to it."""
    records = xp.logical_or(xp.equal(x, y), xp.isnan(x))
    return (xp.unhold(ct, records, axis=axis),)


def hold(xp: Any, ct: Any, y: Any, x: Any, mask: Any, *, axis: int) -> Cotangents:
    return xp.unhold(ct, mask, axis=axis), None


def unhold(xp: Any, ct: Any, y: Any, x: Any, mask: Any, *, axis: int) -> Cotangents:
    return xp.hold(ct, mask, axis=axis), None


def sort(xp: Any, ct: Any, y: Any, x: Any, *, axis: int, descending: bool) -> Cotangents:
    return (xp.unsort(ct, x, axis=axis, descending=descending),)


def sort_like(
    xp: Any, ct: Any, y: Any, values: Any, x: Any, *, axis: int, descending: bool
) -> Cotangents:
    return xp.unsort(ct, x, axis=axis, descending=descending), None


def unsort(
    xp: Any, ct: Any, y: Any, values: Any, x: Any, *, axis: int, descending: bool
) -> Cotangents:
    return xp.sort_like(ct, x, axis=axis, descending=descending), None


def median(xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool) -> Cotangents:
    return quantile(xp, ct, y, x, axis=axis, keepdims=keepdims, q=0.5)


def quantile(
    xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool, q: float
) -> Cotangents:
    weights = xp.quantile_weights(x, q, axis=axis)
    return (weights * spread(xp, ct, x, axis, keepdims),)
