"""What comparisons, selection and casts mean; see `elementwise.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...oracles import finfo
from ..bounded import (
    BOOL,
    EXACT,
    INT64,
    SMALL,
    WHOLE,
    Bounded,
    Function,
    as_dtype,
    choose,
    compare,
    difference,
    elementwise,
)

Array = Any


def comparison(function: Function) -> Function:
    def evaluate_comparison(a: Bounded, b: Bounded) -> Bounded:
        if a.dtype == b.dtype == BOOL:
            return Bounded(function(a.value, b.value), np.maximum(a.error, b.error), BOOL)
        return compare(function, a, b)

    return evaluate_comparison


def signbit(x: Bounded) -> Bounded:
    """NaN has either sign, and so has a zero of which none is known."""
    value = np.signbit(x.value)
    doubt = x.lost | (np.signbit(x.low) != value) | (np.signbit(x.high) != value)
    is_zero = (np.abs(x.value) <= x.error) & ((x.error > 0) | ~np.asarray(x.signed))
    return Bounded(value, (doubt | np.isnan(x.value) | is_zero).astype(np.float64), BOOL)


INT32_RANGE = (-(2.0**31), 2.0**31 - 1)


def where(condition: Bounded, a: Bounded, b: Bounded) -> Bounded:
    return choose(condition, a, b)


def cast(x: Bounded, dtype: Any) -> Bounded:
    if dtype in SMALL and x.dtype in EXACT:
        value = np.asarray(x.value).astype(np.int64).astype(dtype).astype(np.int64)
        return Bounded(value, np.where(np.asarray(x.error) > 0, np.inf, 0.0), dtype)
    if dtype not in WHOLE or x.dtype in EXACT:
        return as_dtype(x, dtype)
    low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype in SMALL else INT32_RANGE

    def truncate(array: Array) -> Array:
        whole = np.nan_to_num(np.trunc(array), nan=0.0, posinf=2.0**31, neginf=-(2.0**31))
        return np.clip(whole, low, high)

    value = truncate(x.value)
    error = np.maximum(difference(truncate(x.low), value), difference(truncate(x.high), value))
    far = (dtype == INT64) & (np.abs(value) >= 2.0**31 - 1)  # JAX may have no larger ones
    return Bounded(value.astype(np.int64), np.where(x.lost | far, np.inf, error), dtype)


def full_like(x: Bounded, value: Bounded, dtype: Any) -> Bounded:
    filled = as_dtype(value, dtype)
    return Bounded(
        np.broadcast_to(filled.value, x.shape),
        np.broadcast_to(filled.error, x.shape),
        dtype,
        filled.signed,
    )


def nan_to_num(x: Bounded, nan: float, posinf: float | None, neginf: float | None) -> Bounded:
    top = float(finfo(x.dtype).max)
    ends = [top if posinf is None else posinf, -top if neginf is None else neginf]
    above, below, instead = (float(np.asarray(v, x.dtype)) for v in (*ends, nan))

    def replace(array: Array) -> Array:
        array = np.where(np.isnan(array), instead, array)
        return np.where(array == np.inf, above, np.where(array == -np.inf, below, array))

    return elementwise(replace, x, ulps=0)


MASKS: dict[str, Function] = {
    "lt": comparison(np.less),
    "le": comparison(np.less_equal),
    "gt": comparison(np.greater),
    "ge": comparison(np.greater_equal),
    "eq": comparison(np.equal),
    "ne": comparison(np.not_equal),
    "signbit": signbit,
}
SPECIAL: dict[str, Function] = {
    "where": where,
    "cast": cast,
    "full_like": full_like,
    "nan_to_num": nan_to_num,
}
