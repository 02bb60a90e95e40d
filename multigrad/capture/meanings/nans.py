"""Reductions that leave NaN out."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph.ir.types import T
from ...trace.trace import cast
from ...trace.xp import all as xp
from .arrays import cumprod, cumsum

Tensor = Any


def without_nan(x: Tensor, value: float) -> Tensor:
    return xp.where(xp.isnan(x), value, x)


def count(x: Tensor, axis: Any, keepdims: bool) -> Tensor:
    """How many elements are no NaN."""
    present = cast(xp.logical_not(xp.isnan(x)), T)
    return xp.sum(present, axis, keepdims)


def nansum(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return xp.sum(without_nan(x, 0.0), axis, keepdims)


def nanprod(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return xp.prod(without_nan(x, 1.0), axis, keepdims)


def nanmean(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return xp.divide(nansum(x, axis, keepdims), count(x, axis, keepdims))


def nanvar(x: Tensor, axis: Any = None, keepdims: bool = False, correction: float = 0) -> Tensor:
    off = xp.square(xp.subtract(x, nanmean(x, axis, True)))
    number = count(x, axis, keepdims)
    less = xp.subtract(number, correction) if correction else number
    return xp.divide(nansum(off, axis, keepdims), less)


def nanstd(x: Tensor, axis: Any = None, keepdims: bool = False, correction: float = 0) -> Tensor:
    return xp.sqrt(nanvar(x, axis, keepdims, correction))


def nanmax(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    largest = xp.max(without_nan(x, -np.inf), axis, keepdims)
    return xp.where(xp.equal(count(x, axis, keepdims), 0), np.nan, largest)


def nanmin(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    smallest = xp.min(without_nan(x, np.inf), axis, keepdims)
    return xp.where(xp.equal(count(x, axis, keepdims), 0), np.nan, smallest)


def nancumsum(x: Tensor, axis: Any = None, dtype: Any = None) -> Tensor:
    return cumsum(without_nan(x, 0.0), axis, dtype=dtype)


def nancumprod(x: Tensor, axis: Any = None, dtype: Any = None) -> Tensor:
    return cumprod(without_nan(x, 1.0), axis, dtype=dtype)
