"""MLX's rows of the ordering family, each function named as its op."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from multigrad.backend import lifted, orderings, rows_of

from .elementwise import accumulated, exp, is_floating, logaddexp
from .shapes import axes_of, flip

Tensor = Any
Axis = int | tuple[int, ...] | None


# --- scans -------------------------------------------------------------------------------------
@lifted
def cumsum(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    if not x.size:  # of no elements, MLX before 0.32.4 ends the process
        return x
    return mx.cumsum(accumulated(x), axis=axis, reverse=reverse).astype(x.dtype)


@lifted
def cumprod(x: Tensor, *, axis: int) -> Tensor:
    return mx.cumprod(accumulated(x), axis=axis).astype(x.dtype) if x.size else x


@lifted
def logcumsumexp(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    return along(logaddexp, (accumulated(x),), axis, reverse)[0].astype(x.dtype)


@lifted
def discounted_sum(values: Tensor, y: Tensor, *, axis: int, reverse: bool) -> Tensor:
    pair = (accumulated(values), accumulated(y))
    return along(discount, pair, axis, reverse)[0].astype(values.dtype)


def discount(later: Any, earlier: Any) -> Any:
    (value, own), (total, y) = later, earlier
    share = mx.where(own == y, 1.0, exp(mx.minimum(own - y, 0.0)))
    return value + share * total, own


def along(combine: Any, arrays: tuple[Tensor, ...], axis: int, reverse: bool) -> Any:
    """Combine each element with all before it along an axis (`reverse`: after it)."""
    last = [mx.swapaxes(flip(x, axis=axis) if reverse else x, axis, -1) for x in arrays]
    length, shift = last[0].shape[-1], 1
    while shift < length:
        later, earlier = [x[..., shift:] for x in last], [x[..., :-shift] for x in last]
        found = combine(later, earlier) if len(last) > 1 else [combine(later[0], earlier[0])]
        last = [mx.concatenate([x[..., :shift], y], -1) for x, y in zip(last, found, strict=True)]
        shift *= 2
    back = [mx.swapaxes(x, axis, -1) for x in last]
    return [flip(x, axis=axis) for x in back] if reverse else back


@lifted
def cummax(x: Tensor, *, axis: int) -> Tensor:
    return along(mx.maximum, (x,), axis, False)[0]


@lifted
def cummin(x: Tensor, *, axis: int) -> Tensor:
    return along(mx.minimum, (x,), axis, False)[0]


def positions(x: Tensor, axis: int) -> Tensor:
    """The index of each element along an axis, in a shape that broadcasts."""
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    return mx.arange(x.shape[axis], dtype=mx.int64).reshape(shape)


def last_true(mask: Tensor, axis: int) -> Tensor:
    """The index of the latest True along an axis, -1 before the first."""
    return cummax(mx.where(mask, positions(mask, axis), -1), axis=axis)


@lifted
def hold(x: Tensor, mask: Tensor, *, axis: int) -> Tensor:
    latest = last_true(mask, axis)
    values = mx.take_along_axis(x, mx.maximum(latest, 0), axis)
    return mx.where(latest < 0, 0, values).astype(x.dtype)


@lifted
def unhold(x: Tensor, mask: Tensor, *, axis: int) -> Tensor:
    latest = last_true(mask, axis)
    values = mx.where(latest < 0, 0, accumulated(x))
    places = mx.maximum(latest, 0)
    index = tuple(places if i == axis % x.ndim else positions(places, i) for i in range(x.ndim))
    return put(x.shape, index, values).astype(x.dtype)


def put(shape: tuple[int, ...], index: Any, values: Tensor) -> Tensor:
    """Sums of the values at places; MLX refuses to add nothing, or to nothing."""
    sums = mx.zeros(shape, values.dtype)
    return sums.at[index].add(values) if values.size and sums.size else sums


# --- sorting -----------------------------------------------------------------------------------
def order(x: Tensor, axis: int, descending: bool) -> Tensor:
    """The stable permutation that sorts x; NaN is the largest."""
    if not x.size:
        return mx.zeros(x.shape, mx.uint32)
    if not descending:
        return mx.argsort(x, axis=axis)
    last = x.shape[axis] - 1
    return last - flip(mx.argsort(flip(x, axis=axis), axis=axis).astype(mx.int32), axis=axis)


def ranks(x: Tensor, axis: int) -> Tensor:
    """The place of each element in sorted x."""
    return order(order(x, axis, False), axis, False).astype(mx.int32)


def take(x: Tensor, places: Tensor, axis: int) -> Tensor:
    """x at places along an axis, each row at its own."""
    return mx.take_along_axis(x, places, axis)


@lifted
def argmax_mask(x: Tensor, *, axis: int | None) -> Tensor:
    return first_only(x, axis, mx.max)


@lifted
def argmin_mask(x: Tensor, *, axis: int | None) -> Tensor:
    return first_only(x, axis, mx.min)


def first_only(x: Tensor, axis: int | None, extreme: Callable[..., Tensor]) -> Tensor:
    """Mark the first NaN, or else the first extreme element."""
    if x.size == 0:
        return mx.zeros(x.shape, mx.bool_)
    if axis is None:
        return first_only(x.reshape(-1), 0, extreme).reshape(x.shape)
    nan = mx.isnan(x) if is_floating(x) else mx.zeros(x.shape, mx.bool_)
    is_best = mx.where(
        mx.any(nan, axis=axis, keepdims=True), nan, x == extreme(x, axis=axis, keepdims=True)
    )
    return is_best & (mx.cumsum(is_best.astype(mx.int32), axis=axis) == 1)


# --- quantiles ---------------------------------------------------------------------------------
def as_rows(x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, list[int]]:
    """x with the axes given merged into one, at the end, and the order that they were put in."""
    order = [i for i in range(x.ndim) if i not in axes] + list(axes)
    last, kept = mx.transpose(x, order), x.ndim - len(axes)
    return last.reshape((*last.shape[:kept], math.prod(last.shape[kept:]))), order


def quantile(x: Tensor, *, axis: Axis, keepdims: bool, q: float) -> Tensor:
    axes = axes_of(x, axis)
    rows, _ = as_rows(accumulated(x), axes)
    n = rows.shape[-1]
    if n == 0:
        result = mx.full(rows.shape[:-1], math.nan, dtype=rows.dtype)
    else:
        rows = mx.take_along_axis(rows, order(rows, -1, False), -1)
        low, weight = math.floor(q * (n - 1)), q * (n - 1) % 1
        result = rows[..., low]
        if weight:
            result = result * (1 - weight) + rows[..., low + 1] * weight
        result = mx.where(mx.isnan(rows[..., -1]), rows[..., -1], result)
    result = mx.expand_dims(result, sorted(axes)) if keepdims and axes else result
    return result.astype(x.dtype)


def quantile_weights(x: Tensor, *, axis: Axis, q: float) -> Tensor:
    if x.size == 0:
        return mx.zeros_like(x)
    rows, order = as_rows(x, axes_of(x, axis))
    place = q * (rows.shape[-1] - 1)
    low, weight = math.floor(place), place % 1
    found = ranks(rows, -1)
    own, next_one = (mx.array(each, x.dtype) for each in (1 - weight, weight))
    weights = mx.where(found == low, own, mx.where(found == low + 1, next_one, 0.0))
    moved = weights.reshape([x.shape[i] for i in order])
    return mx.transpose(moved, [order.index(i) for i in range(x.ndim)]).astype(x.dtype)


OPS = {**orderings(order, take), **rows_of(vars())}
