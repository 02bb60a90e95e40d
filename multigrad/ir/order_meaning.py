"""What each op of the ordering family means, in NumPy.

Sorting is stable, -0 equals 0, NaN is larger than every number. A scalar counts as one element along any axis.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .meaning import is_16_bit, widened

Array = Any  # numpy.ndarray or a NumPy scalar
Axis = int | tuple[int, ...] | None


def lifted(function: Callable[..., Array]) -> Callable[..., Array]:
    """Take scalars as arrays of one element, whichever axis is asked for."""

    @functools.wraps(function)
    def call(*arrays: Any, axis: Axis, **attrs: Any) -> Array:
        arrays = tuple(map(np.asarray, arrays))
        if all(array.ndim == 0 for array in arrays):
            return function(*(a.reshape(1) for a in arrays), axis=0, **attrs).reshape(())
        return function(*arrays, axis=axis, **attrs)

    return call


def comparable(x: Array) -> Array:
    """16-bit floats in float32, which NumPy sorts and compares; exact."""
    return x.astype(np.float32) if is_16_bit(x) else x


@widened
@lifted
def cumsum(x: Array, *, axis: int, reverse: bool) -> Array:
    if reverse:
        return np.flip(np.cumsum(np.flip(x, axis), axis=axis), axis)
    return np.cumsum(x, axis=axis)


@widened
@lifted
def cumprod(x: Array, *, axis: int) -> Array:
    return np.cumprod(x, axis=axis)


@widened
@lifted
def cummax(x: Array, *, axis: int) -> Array:
    return np.maximum.accumulate(x, axis=axis)


@widened
@lifted
def cummin(x: Array, *, axis: int) -> Array:
    return np.minimum.accumulate(x, axis=axis)


def last_true(mask: Array, axis: int) -> Array:
    """Return, along the last axis, the index of the latest True, -1 before the first."""
    mask = np.moveaxis(mask, axis, -1)
    places = np.where(mask, np.arange(mask.shape[-1]), -1)
    return np.maximum.accumulate(places, axis=-1)


@lifted
def hold(x: Array, mask: Array, *, axis: int) -> Array:
    latest = last_true(mask, axis)
    values = np.take_along_axis(np.moveaxis(x, axis, -1), np.maximum(latest, 0), -1)
    return np.moveaxis(np.where(latest < 0, x.dtype.type(0), values), -1, axis)


@widened
@lifted
def unhold(x: Array, mask: Array, *, axis: int) -> Array:
    latest = last_true(mask, axis)
    sums = np.zeros_like(np.moveaxis(x, axis, -1), order="C")
    *rows, _ = np.indices(latest.shape, sparse=True)
    values = np.where(latest < 0, x.dtype.type(0), np.moveaxis(x, axis, -1))
    np.add.at(sums, (*rows, np.maximum(latest, 0)), values)
    return np.moveaxis(sums, -1, axis)


# --- sorting -----------------------------------------------------------------------------------
def order(x: Array, axis: int, descending: bool) -> Array:
    """Return the stable permutation that sorts x."""
    x = comparable(x)
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # Sorted backward and turned around, equal values keep their order and NaN comes first.
    back = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(back, axis)


def ranks(x: Array, axis: int, descending: bool) -> Array:
    """Return the place of each element in sorted x."""
    return np.argsort(order(x, axis, descending), axis=axis)


@lifted
def sort(x: Array, *, axis: int, descending: bool) -> Array:
    return np.take_along_axis(x, order(x, axis, descending), axis)


@lifted
def sort_like(values: Array, x: Array, *, axis: int, descending: bool) -> Array:
    return np.take_along_axis(values, order(x, axis, descending), axis)


@lifted
def unsort(values: Array, x: Array, *, axis: int, descending: bool) -> Array:
    return np.take_along_axis(values, ranks(x, axis, descending), axis)


@lifted
def argmax_mask(x: Array, *, axis: int | None) -> Array:
    return first_only(x, axis, np.argmax)


@lifted
def argmin_mask(x: Array, *, axis: int | None) -> Array:
    return first_only(x, axis, np.argmin)


def first_only(x: Array, axis: int | None, find: Callable[..., Array]) -> Array:
    """Mark the one element that `find` gives the index of."""
    if x.size == 0:
        return np.zeros(x.shape, bool)
    if axis is None:
        return (np.arange(x.size) == find(comparable(x))).reshape(x.shape)
    places = np.arange(x.shape[axis]).reshape((-1,) + (1,) * (x.ndim - 1 - axis % x.ndim))
    return places == find(comparable(x), axis=axis, keepdims=True)


@lifted
def top_k_mask(x: Array, *, axis: int, k: int) -> Array:
    return ranks(x, axis, True) < k


# --- quantiles ---------------------------------------------------------------------------------
def as_rows(x: Array, axis: Axis) -> Array:
    """Return x with the axes given merged into one, at the end."""
    axes = as_axes(x, axis)
    kept = x.ndim - len(axes)
    last = np.moveaxis(x, axes, range(kept, x.ndim))
    return last.reshape((*last.shape[:kept], math.prod(last.shape[kept:])))


def as_axes(x: Array, axis: Axis) -> tuple[int, ...]:
    """Return the axes to reduce over; none of a scalar."""
    if axis is None or x.ndim == 0:
        return tuple(range(x.ndim))
    return axis if isinstance(axis, tuple) else (axis,)


def neighbors(n: int, q: float) -> tuple[int, int, float]:
    """Return the places around the q-quantile of n sorted values, and the weight of the second."""
    place = q * (n - 1)
    low = math.floor(place)
    return low, min(low + 1, n - 1), place - low


def median(x: Array, *, axis: Axis, keepdims: bool) -> Array:
    return quantile(x, axis=axis, keepdims=keepdims, q=0.5)


@widened
def quantile(x: Array, *, axis: Axis, keepdims: bool, q: float) -> Array:
    rows = as_rows(x, axis)
    n = rows.shape[-1]
    if n == 0:
        result = np.full(rows.shape[:-1], np.nan, x.dtype)
    else:
        rows = np.sort(rows, axis=-1)
        low, high, weight = neighbors(n, q)
        result = rows[..., low]
        if weight:
            number = x.dtype.type
            result = result * number(1 - weight) + rows[..., high] * number(weight)
        result = np.where(np.isnan(rows[..., -1]), rows[..., -1], result)
    return result.reshape(reduced_shape(x, axis)) if keepdims else result


def reduced_shape(x: Array, axis: Axis) -> tuple[int, ...]:
    """Return x's shape with ones in the places reduced."""
    axes = [i % x.ndim for i in as_axes(x, axis)]
    return tuple(1 if i in axes else n for i, n in enumerate(x.shape))


@lifted
def quantile_weights(x: Array, *, axis: Axis, q: float) -> Array:
    rows = as_rows(x, axis)
    if rows.size == 0:
        return np.zeros_like(x)
    low, high, weight = neighbors(rows.shape[-1], q)
    place = ranks(rows, -1, False)
    weights = np.where(place == low, 1 - weight, np.where(place == high, weight, 0.0))
    axes = as_axes(x, axis)
    back = range(x.ndim - len(axes), x.ndim)
    moved = weights.reshape(np.moveaxis(x, axes, back).shape)
    return np.moveaxis(moved, back, axes).astype(x.dtype)
