"""Reductions and measures of spread, each with the options of all libraries.

A library's own signature says which options it takes, in which order and with which defaults.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from typing import Any

from ...graph.ir.types import BOOL, FLOATS, T, dtype_name
from ...trace import trace
from ...trace.trace import NeedsConcrete
from ...trace.xp import all as xp
from ..dtypes import cast, in_dtype, own_dtype
from .places import counted

Tensor = Any
Reduction = Callable[..., Tensor]


def chosen(x: Tensor, where: Any, otherwise: Any) -> Tensor:
    """Return x with the elements that a reduction skips replaced by a neutral value."""
    return x if where is None or where is True else xp.where(where, x, otherwise)


def total(name: str, reduce: Reduction, nothing: float, combine: Reduction) -> Reduction:
    """Return a handler for a sum or product with neutral element `nothing`; bools count."""

    def record(
        x: Tensor,
        axis: Any = None,
        keepdims: bool = False,
        *,
        dtype: Any = None,
        initial: Any = None,
        where: Any = None,
    ) -> Tensor:
        result = reduce(chosen(counted(x), where, nothing), axis, keepdims)
        return in_dtype(result if initial is None else combine(result, initial), dtype)

    record.__name__ = record.__qualname__ = name
    return record


def extreme(name: str, reduce: Reduction, combine: Reduction) -> Reduction:
    """Return a handler for the largest or smallest element, `initial` included."""

    def record(
        x: Tensor,
        axis: Any = None,
        keepdims: bool = False,
        *,
        initial: Any = None,
        where: Any = None,
    ) -> Tensor:
        if where is not None and where is not True and initial is None:
            raise TypeError(f"{name} with where and without initial")
        result = reduce(chosen(x, where, initial), axis, keepdims)
        return result if initial is None else combine(result, initial)

    record.__name__ = record.__qualname__ = name
    return record


def of_bools(name: str, reduce: Reduction, nothing: bool) -> Reduction:
    """Return a handler for a reduction over truth values; every number but 0 is true."""

    def record(x: Tensor, axis: Any = None, keepdims: bool = False, *, where: Any = None) -> Tensor:
        return reduce(chosen(cast(x, BOOL), where, nothing), axis, keepdims)

    record.__name__ = record.__qualname__ = name
    return record


def mean(
    x: Tensor, axis: Any = None, keepdims: bool = False, *, dtype: Any = None, where: Any = None
) -> Tensor:
    return in_dtype(_mean(x, axis, keepdims, where), dtype)


def _mean(x: Tensor, axis: Any, keepdims: bool, where: Any) -> Tensor:
    if where is None or where is True:
        return xp.mean(x, axis, keepdims)
    return xp.sum(chosen(x, where, 0.0), axis, keepdims) / _number(x, axis, keepdims, where)


def _number(x: Tensor, axis: Any, keepdims: bool, where: Any) -> Tensor:
    return xp.sum(xp.cast_like(xp.broadcast_to(where, x), x), axis, keepdims)


def deviation(name: str, reduce: Reduction) -> Reduction:
    """Return a handler for a spread; `correction` overrides `ddof`, `ddof` `unbiased`."""

    def record(
        x: Tensor,
        axis: Any = None,
        keepdims: bool = False,
        *,
        correction: Any = None,
        ddof: Any = None,
        unbiased: bool = False,
        dtype: Any = None,
        where: Any = None,
    ) -> Tensor:
        if isinstance(axis, bool):  # torch.std(x, False)
            axis, unbiased = None, axis
        corrections = [n for n in (correction, ddof, int(unbiased)) if n is not None]
        x = x if dtype is None else cast(x, _wider(x, dtype))
        if where is None or where is True:
            return in_dtype(reduce(x, axis, corrections[0], keepdims), dtype)
        off = xp.square(x - _mean(x, axis, True, where))
        number = _number(x, axis, keepdims, where) - corrections[0]
        spread = xp.sum(chosen(off, where, 0.0), axis, keepdims) / number
        return in_dtype(xp.sqrt(spread) if reduce is xp.std else spread, dtype)

    record.__name__ = record.__qualname__ = name
    return record


def _wider(x: Tensor, dtype: Any) -> Any:
    # Libraries compute in the wider of the two float dtypes, then cast to the one asked for.
    dtype_of_x = own_dtype(x)
    dtype_of_x = x.trace.facts.get("dtype") if dtype_of_x == T else dtype_of_x
    if dtype_of_x is None:
        raise NeedsConcrete("dtype")
    both = [name for name in (dtype_of_x, dtype_name(dtype)) if name in FLOATS]
    return builtins.max(both, key=FLOATS.index) if both else dtype


sum, prod = total("sum", xp.sum, 0, operator.add), total("prod", xp.prod, 1.0, operator.mul)
max, min = extreme("max", xp.max, xp.maximum), extreme("min", xp.min, xp.minimum)
any, all = of_bools("any", xp.any, False), of_bools("all", xp.all, True)
std, var = deviation("std", xp.std), deviation("var", xp.var)


# --- that leave NaN out ---------------------------------------------------------------------------
def without_nan(x: Tensor, value: float) -> Tensor:
    return xp.where(xp.isnan(x), value, x)


def count(x: Tensor, axis: Any, keepdims: bool) -> Tensor:
    present = trace.cast(xp.logical_not(xp.isnan(x)), T)
    return xp.sum(present, axis, keepdims)


def nansum(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return sum(without_nan(x, 0.0), axis, keepdims)


def nanprod(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return prod(without_nan(x, 1.0), axis, keepdims)


def nanmean(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return xp.divide(nansum(x, axis, keepdims), count(x, axis, keepdims))


def nanvar(x: Tensor, axis: Any = None, keepdims: bool = False, correction: float = 0) -> Tensor:
    off = xp.where(xp.isnan(x), 0.0, xp.subtract(x, nanmean(x, axis, True)))
    number = count(x, axis, keepdims)
    less = xp.subtract(number, correction) if correction else number
    return xp.divide(sum(xp.square(off), axis, keepdims), less)


def nanstd(x: Tensor, axis: Any = None, keepdims: bool = False, correction: float = 0) -> Tensor:
    return xp.sqrt(nanvar(x, axis, keepdims, correction))


def nanmax(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    # A slice of NaN only gives NaN, not the neutral infinity.
    largest = xp.max(without_nan(x, -math.inf), axis, keepdims)
    return xp.where(xp.equal(count(x, axis, keepdims), 0), math.nan, largest)


def nanmin(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    smallest = xp.min(without_nan(x, math.inf), axis, keepdims)
    return xp.where(xp.equal(count(x, axis, keepdims), 0), math.nan, smallest)
