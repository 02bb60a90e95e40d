"""Float64 numbers that know how far the roundings of a dtype can take a computation away from them.

A bound comes from running a function at the ends of what its operands may be, so that a meaning is
one plain NumPy function. An infinite bound says that roundings decide what comes out (an infinity,
a NaN, the side of a jump): such an element is not compared.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..oracles import FLOAT32, FLOAT64, finfo, slack

Array = Any
Function = Callable[..., Array]
BOOL, INT32, INT64 = np.dtype(bool), np.dtype(np.int32), np.dtype(np.int64)
INTEGERS = (INT32, INT64)
SMALL = tuple(map(np.dtype, (np.int8, np.uint8, np.int16)))
WHOLE = (*SMALL, *INTEGERS)
EXACT = (BOOL, *WHOLE)


@dataclass(frozen=True, eq=False)
class Bounded:
    """`value`, and the bound `error` on what a computation in `dtype` gives instead.

    Attributes:
        signed: the sign of a zero is known; frameworks differ on max(0, -0).
        weak: a Python number, which takes the dtype of the tensor it meets.
    """

    value: Array
    error: Array
    dtype: Any
    signed: Array = True
    weak: bool = False

    @property
    def lost(self) -> Array:
        """Where nothing is known."""
        return np.isinf(self.error)

    @property
    def low(self) -> Array:
        return np.where(self.error > 0, self.value - self.error, self.value)

    @property
    def high(self) -> Array:
        return np.where(self.error > 0, self.value + self.error, self.value)

    @property
    def size(self) -> Array:
        """The largest magnitude that it may have."""
        return np.abs(self.value) + self.error

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.value)

    def map(self, move: Function, fill: float | bool = 0) -> Bounded:
        """Move the elements: `move(array, fill)`, where what is put between them is `fill`."""
        error = np.broadcast_to(self.error, self.shape)
        signed = np.broadcast_to(self.signed, self.shape)
        return Bounded(
            move(self.value, fill), move(error, 0.0), self.dtype, move(signed, True), self.weak
        )


def known(array: Array) -> Bounded:
    """An array of numbers that are exact. Subnormal ones may be taken for zero."""
    dtype = np.asarray(array).dtype
    if dtype in EXACT:
        return Bounded(
            np.asarray(array, bool if dtype == BOOL else np.int64), np.zeros(np.shape(array)), dtype
        )
    value = np.asarray(array).astype(np.float64)
    return Bounded(value, flushed(value, dtype), dtype)


def flushed(value: Array, dtype: Any) -> Array:
    """What a subnormal number loses where it is taken for zero."""
    tiny = (value != 0) & (np.abs(value) < slack(dtype))
    return np.where(tiny, slack(dtype), 0.0)


def number(value: float, dtype: Any) -> Bounded:
    """A Python number. What is computed from it may be rounded to float32 in programs of that
    size.
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    wide = FLOAT64 if dtype == FLOAT64 else FLOAT32
    kind = BOOL if isinstance(value, bool) else INT32 if whole else wide
    return Bounded(np.asarray(value), np.zeros(()), kind, weak=True)


def as_dtype(x: Bounded, dtype: Any) -> Bounded:
    """A weak number, a bool or an integer in the dtype of what it meets; another float, rounded to
    it.
    """
    if x.dtype == dtype and not x.weak:
        return Bounded(x.value, x.error, dtype, x.signed)
    if dtype in EXACT or x.dtype == BOOL:  # a weak integer is rounded below
        value = np.asarray(x.value).astype(np.int64 if dtype in WHOLE else np.float64)
        doubt = np.asarray(x.error)
        return Bounded(value, doubt if x.dtype != BOOL else np.where(doubt > 0, 1.0, 0.0), dtype)
    wide = np.asarray(x.value).astype(np.float64)
    value = wide.astype(dtype).astype(np.float64)
    # A given number is rounded in the same way everywhere; what is not exact may be rounded to a
    # neighbor.
    error = np.where(x.error > 0, x.error + float(finfo(dtype).eps) * np.abs(wide), 0.0)
    result = settle(np.where(x.error > 0, wide, value), error, dtype, 0)
    return Bounded(result.value, result.error, dtype, x.signed)


def settle(
    value: Array, error: Array, dtype: Any, ulps: float, scale: Array = None, kernel: bool = False
) -> Bounded:
    """The result of one operation: in range, its own rounding added to what was propagated.

    Args:
        ulps: eps of `scale` (None: of the value) that the operation itself may be off.
        kernel: a function whose zeros may have underflowed.
    """
    if dtype in EXACT:
        return Bounded(value, np.asarray(error, np.float64), dtype)
    value, error = np.asarray(value, np.float64), np.asarray(error, np.float64)
    top, eps = float(finfo(dtype).max), float(finfo(dtype).eps)
    ulps = ulps + (2 * (ulps > 0) if dtype == FLOAT64 else 0)  # the oracle's own rounding
    finite, unknown = np.isfinite(value), ~np.isfinite(error)
    size = np.abs(value) if scale is None else np.fmax(np.abs(value), np.abs(scale))
    error = error + np.where(ulps * size > 0, ulps * eps * size, 0.0)
    inexact = (error > 0) | ((value != 0) & (ulps > 0)) | (kernel and dtype == FLOAT64)
    error = error + np.where(inexact, 2 * slack(dtype), flushed(value, dtype))
    over = finite & (np.abs(value) - error > top)
    unknown |= finite & ~over & (np.abs(value) + error > top) & (error > 0)
    error = np.where(unknown, np.inf, np.where(finite & ~over, error, 0.0))
    value = np.where(over, np.sign(value) * np.inf, value)
    return Bounded(value, error, dtype, value != 0)


def difference(a: Array, b: Array) -> Array:
    """How far a is from b: 0 for the same infinity or NaN, infinite for another."""
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    away = np.abs(a - b)
    return np.where(same, 0.0, np.where(np.isnan(away), np.inf, away))


def meet(operands: tuple[Bounded, ...], dtype: Any) -> tuple[Bounded, ...]:
    """Weak numbers take the dtype of the tensors."""
    return tuple(as_dtype(x, dtype) if x.weak and x.dtype != BOOL else x for x in operands)


def elementwise(
    function: Function,
    *operands: Bounded,
    ulps: float = 4,
    scale: Function | None = None,
    breaks: Function | None = None,
    zero_sign: bool = False,
    dtype: Any = None,
) -> Bounded:
    """A function of each element.

    Args:
        scale: what its error is measured by, of (*operands, result).
        breaks: which branch the operands are on: another one within their errors says that nothing
            is known.
        zero_sign: it tells 0 from -0.
    """
    dtype = dtype or operands[0].dtype
    value = np.asarray(function(*(x.value for x in operands)))
    error = np.zeros(np.broadcast_shapes(*(x.shape for x in operands)))
    if any(np.any(x.error > 0) for x in operands):
        branch = None if breaks is None else breaks(*(x.value for x in operands))
        ends = [(x.low, x.high) if np.any(x.error > 0) else (x.value,) for x in operands]
        for corner in itertools.product(*ends):
            error = np.maximum(error, difference(np.asarray(function(*corner)), value))
            if breaks is not None:
                error = np.where(difference(breaks(*corner), branch) != 0, np.inf, error)
    lost = functools.reduce(np.logical_or, [x.lost for x in operands])
    if zero_sign:
        for x in operands:
            lost = lost | ((np.abs(x.value) <= x.error) & ~np.asarray(x.signed))
            lost = lost | ((np.abs(x.value) <= x.error) & (x.error > 0))
    size = None if scale is None else scale(*(x.value for x in operands), value)
    result = settle(value, error, dtype, ulps, size, kernel=ulps > 1)
    return Bounded(result.value, np.where(lost, np.inf, result.error), result.dtype, result.signed)


def compare(function: Function, a: Bounded, b: Bounded) -> Bounded:
    """A mask; its error is 1 where the roundings decide."""
    doubt = a.error + b.error
    with_doubt = (doubt > 0) & ~(np.abs(a.value - b.value) > doubt)
    return Bounded(function(a.value, b.value), with_doubt.astype(np.float64), BOOL)


def choose(condition: Bounded, a: Bounded, b: Bounded) -> Bounded:
    """a or b; both, where the condition is in doubt."""
    test = np.asarray(condition.value, bool)
    value = np.where(test, a.value, b.value)
    error = np.where(test, a.error, b.error)
    if a.dtype == BOOL:
        both = np.where((a.value == b.value) & (a.error + b.error == 0), 0.0, 1.0)
    else:
        both = difference(a.value, b.value) + np.maximum(a.error, b.error)
    signed = np.where(test, a.signed, b.signed) & (condition.error == 0)
    return Bounded(value, np.where(condition.error > 0, both, error), a.dtype, signed)


def unknown_where(x: Bounded, lost: Array) -> Bounded:
    worst = 1.0 if x.dtype == BOOL else np.inf
    return Bounded(x.value, np.where(lost, worst, x.error), x.dtype, x.signed)


def widened(x: Bounded) -> Bounded:
    """16-bit floats in float32, in which composite functions compute."""
    return Bounded(x.value, x.error, way(x.dtype), x.signed)


def way(dtype: Any) -> Any:
    """The dtype that a composite function computes in."""
    return FLOAT32 if dtype not in EXACT and np.dtype(dtype).itemsize == 2 else dtype


def narrowed(x: Bounded, dtype: Any) -> Bounded:
    """Rounded once to a dtype."""
    return x if x.dtype == dtype else settle(x.value, x.error, dtype, 1)


def monotone(
    function: Function, x: Bounded, reach: Function, ulps: float, scale: Function | None = None
) -> Bounded:
    """A function of an array that never falls where an element rises.

    Args:
        reach: which results a mask of elements has a say in.
        scale: what its error is measured by, of the magnitudes.
    """
    value = function(x.value)
    error = np.maximum(difference(function(x.low), value), difference(function(x.high), value))
    lost = reach(np.broadcast_to(x.lost, x.shape))
    size = None if scale is None else scale(np.where(np.isfinite(x.value), np.abs(x.value), 0.0))
    if size is not None:
        # What overflows on the way depends on the order.
        lost = lost | (np.asarray(size) >= 0.99 * float(finfo(way(x.dtype)).max))
    result = settle(value, error, x.dtype, ulps, size, kernel=ulps > 1)
    return Bounded(result.value, np.where(lost, np.inf, result.error), x.dtype, result.signed)


def multilinear(
    function: Function, *operands: Bounded, ulps: float, in_parts: bool = False, apart: bool = False
) -> Bounded:
    """A sum of products. What is infinite is left out where an infinity may have met a zero.

    Args:
        in_parts: more than two factors, so that what overflows or underflows on the way depends on
            the order.
        apart: a factor may be summed before it is multiplied: inf * (2 - 1) is no NaN.
    """
    dtype = operands[0].dtype
    value = function(*(x.value for x in operands))
    finite = [np.where(np.isfinite(x.value), np.abs(x.value), 1.0) for x in operands]
    errors = [np.broadcast_to(x.error, x.shape) for x in operands]
    size = function(*finite)
    most = function(*(a + e for a, e in zip(finite, errors, strict=True)))
    error = np.where(np.isfinite(value), difference(most, size), 0.0)
    top, tiny = 0.99 * float(finfo(way(dtype)).max), slack(way(dtype))
    lost = ~(most < top)
    if in_parts:
        largest = function(*(np.maximum(a + e, 1) for a, e in zip(finite, errors, strict=True)))
        smallest = function(*(np.minimum(np.where(a > 0, a, 1), 1) for a in finite))
        lost = lost | ~(largest < top) | (smallest < tiny) & ~np.isfinite(value)
        error = error + np.where(smallest < tiny, tiny * largest, 0.0)
    infinite = any(np.any(np.isinf(x.value)) for x in operands)
    near_zero = any(np.any((np.abs(x.value) <= x.error) & (x.error > 0)) for x in operands)
    lost = lost | ~np.isfinite(value) & (infinite and (near_zero or apart))
    # A NaN stays one, whatever else is not known.
    nan = function(*(np.where(np.isnan(x.value) & (x.error == 0), np.nan, 1.0) for x in operands))
    lost = lost & ~np.isnan(nan)
    if any(np.any(np.isinf(e)) for e in errors):
        lost = lost | ~np.isfinite(function(*(np.where(np.isinf(e), np.inf, 1.0) for e in errors)))
    result = settle(value, error, dtype, ulps, np.where(np.isfinite(size), size, 0.0))
    return Bounded(result.value, np.where(lost, np.inf, result.error), dtype, result.signed)
