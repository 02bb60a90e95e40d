"""Reductions and measures of spread, each with the options of all libraries.

A library's own signature says which options it takes, in which order and with which defaults.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from typing import Any

from ....core.ir.op import BOOL, FLOATS, T, dtype_name
from ....core.trace import trace
from ....core.trace.trace import NeedsConcrete, Value
from ....core.trace.xp import all as xp
from ..symbols import cast, in_dtype, own_dtype
from .places import counted

Reduction = Callable[..., Value]


def named_as(name: str) -> Callable[[Reduction], Reduction]:
    """Return a decorator that gives a handler the name that messages about its calls show."""

    def rename(handler: Reduction) -> Reduction:
        handler.__name__ = handler.__qualname__ = name
        return handler

    return rename


def masked(x: Value, where: Any, otherwise: Any) -> Value:
    """Return x with the elements that a reduction skips replaced by a neutral value."""
    return x if where is None or where is True else xp.where(where, x, otherwise)


def summing(name: str, reduce: Reduction, neutral: float, combine: Reduction) -> Reduction:
    """Return a handler for a sum or product with neutral element `neutral`; bools count."""

    @named_as(name)
    def record(
        x: Value,
        axis: Any = None,
        keepdims: bool = False,
        *,
        dtype: Any = None,
        initial: Any = None,
        where: Any = None,
    ) -> Value:
        result = reduce(masked(counted(x), where, neutral), axis, keepdims)
        return in_dtype(result if initial is None else combine(result, initial), dtype)

    return record


def extreme(name: str, reduce: Reduction, combine: Reduction) -> Reduction:
    """Return a handler for the largest or smallest element, `initial` included."""

    @named_as(name)
    def record(
        x: Value,
        axis: Any = None,
        keepdims: bool = False,
        *,
        initial: Any = None,
        where: Any = None,
    ) -> Value:
        if where is not None and where is not True and initial is None:
            raise TypeError(f"{name} with where and without initial")
        result = reduce(masked(x, where, initial), axis, keepdims)
        return result if initial is None else combine(result, initial)

    return record


def of_bools(name: str, reduce: Reduction, neutral: bool) -> Reduction:
    """Return a handler for a reduction over truth values; every number but 0 is true."""

    @named_as(name)
    def record(x: Value, axis: Any = None, keepdims: bool = False, *, where: Any = None) -> Value:
        return reduce(masked(cast(x, BOOL), where, neutral), axis, keepdims)

    return record


def mean(
    x: Value, axis: Any = None, keepdims: bool = False, *, dtype: Any = None, where: Any = None
) -> Value:
    return in_dtype(_mean(x, axis, keepdims, where), dtype)


def _mean(x: Value, axis: Any, keepdims: bool, where: Any) -> Value:
    if where is None or where is True:
        return xp.mean(x, axis, keepdims)
    return xp.sum(masked(x, where, 0.0), axis, keepdims) / _count_where(x, axis, keepdims, where)


def _count_where(x: Value, axis: Any, keepdims: bool, where: Any) -> Value:
    return xp.sum(xp.cast_like(xp.broadcast_to(where, x), x), axis, keepdims)


def deviation(name: str, reduce: Reduction) -> Reduction:
    """Return a handler for a spread; `correction` overrides `ddof`, `ddof` `unbiased`."""

    @named_as(name)
    def record(
        x: Value,
        axis: Any = None,
        keepdims: bool = False,
        *,
        correction: Any = None,
        ddof: Any = None,
        unbiased: bool = False,
        dtype: Any = None,
        where: Any = None,
    ) -> Value:
        if isinstance(axis, bool):  # torch.std(x, False)
            axis, unbiased = None, axis
        ddof = int(unbiased) if ddof is None else ddof
        correction = ddof if correction is None else correction
        x = x if dtype is None else cast(x, _wider(x, dtype))
        if where is None or where is True:
            return in_dtype(reduce(x, axis, correction, keepdims), dtype)
        deviations = xp.square(x - _mean(x, axis, True, where))
        degrees_of_freedom = _count_where(x, axis, keepdims, where) - correction
        spread = xp.sum(masked(deviations, where, 0.0), axis, keepdims) / degrees_of_freedom
        return in_dtype(xp.sqrt(spread) if reduce is xp.std else spread, dtype)

    return record


def _wider(x: Value, dtype: Any) -> Any:
    # Return the wider of x's dtype and the one asked for: libraries compute in it, then cast.
    dtype_of_x = own_dtype(x)
    dtype_of_x = x.trace.facts.get("dtype") if dtype_of_x == T else dtype_of_x
    if dtype_of_x is None:
        raise NeedsConcrete("dtype")
    float_dtypes = [name for name in (dtype_of_x, dtype_name(dtype)) if name in FLOATS]
    return builtins.max(float_dtypes, key=FLOATS.index) if float_dtypes else dtype


sum, prod = summing("sum", xp.sum, 0, operator.add), summing("prod", xp.prod, 1.0, operator.mul)
max, min = extreme("max", xp.max, xp.maximum), extreme("min", xp.min, xp.minimum)
any, all = of_bools("any", xp.any, False), of_bools("all", xp.all, True)
std, var = deviation("std", xp.std), deviation("var", xp.var)


# --- reductions that ignore NaN -------------------------------------------------------------------
def without_nan(x: Value, value: float) -> Value:
    return xp.where(xp.isnan(x), value, x)


def count(x: Value, axis: Any, keepdims: bool) -> Value:
    present = trace.cast(xp.logical_not(xp.isnan(x)), T)
    return xp.sum(present, axis, keepdims)


def nansum(x: Value, axis: Any = None, keepdims: bool = False) -> Value:
    return sum(without_nan(x, 0.0), axis, keepdims)


def nanprod(x: Value, axis: Any = None, keepdims: bool = False) -> Value:
    return prod(without_nan(x, 1.0), axis, keepdims)


def nanmean(x: Value, axis: Any = None, keepdims: bool = False) -> Value:
    return xp.divide(nansum(x, axis, keepdims), count(x, axis, keepdims))


def nanvar(x: Value, axis: Any = None, keepdims: bool = False, correction: float = 0) -> Value:
    deviations = xp.where(xp.isnan(x), 0.0, xp.subtract(x, nanmean(x, axis, True)))
    degrees_of_freedom = count(x, axis, keepdims)
    if correction:
        degrees_of_freedom = xp.subtract(degrees_of_freedom, correction)
    return xp.divide(sum(xp.square(deviations), axis, keepdims), degrees_of_freedom)


def nanstd(x: Value, axis: Any = None, keepdims: bool = False, correction: float = 0) -> Value:
    return xp.sqrt(nanvar(x, axis, keepdims, correction))


def nanmax(x: Value, axis: Any = None, keepdims: bool = False) -> Value:
    # A slice of NaN only gives NaN, not the neutral infinity.
    largest = xp.max(without_nan(x, -math.inf), axis, keepdims)
    return xp.where(xp.equal(count(x, axis, keepdims), 0), math.nan, largest)


def nanmin(x: Value, axis: Any = None, keepdims: bool = False) -> Value:
    smallest = xp.min(without_nan(x, math.inf), axis, keepdims)
    return xp.where(xp.equal(count(x, axis, keepdims), 0), math.nan, smallest)
