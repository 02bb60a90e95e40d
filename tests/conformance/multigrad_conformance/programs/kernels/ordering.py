"""What cumulative ops, sorting, masks of the largest and quantiles mean; see `arrays.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..bounded import BOOL, Bounded, Function, monotone, multilinear, settle, unknown_where
from .arrays import along_rows, any_over, axes_of

Array = Any
Axis = Any


def whole_rows(function: Function) -> Function:
    """A scalar counts as one element along any axis."""

    def call(*operands: Bounded, axis: Axis, **attrs: Any) -> Bounded:
        if operands[0].shape:
            return function(*operands, axis=axis, **attrs)
        rows = tuple(x.map(lambda a, fill: np.reshape(a, 1)) for x in operands)
        return function(*rows, axis=0, **attrs).map(lambda a, fill: np.reshape(a, ()))

    return call


@whole_rows
def cumsum(x: Bounded, axis: int, reverse: bool) -> Bounded:
    def function(a: Array) -> Array:
        if reverse:
            return np.flip(np.cumsum(np.flip(a, axis), axis=axis), axis)
        return np.cumsum(a, axis=axis)

    return monotone(function, x, along_rows(axis), 2 + x.shape[axis] / 2, function)


@whole_rows
def cumprod(x: Bounded, axis: int) -> Bounded:
    return multilinear(lambda a: np.cumprod(a, axis=axis), x, ulps=4 + x.shape[axis], in_parts=True)


def running(name: str) -> Function:
    @whole_rows
    def function(x: Bounded, axis: int) -> Bounded:
        accumulate = getattr(np, name).accumulate
        return monotone(lambda a: accumulate(a, axis=axis), x, along_rows(axis), 0)

    return function


def order(x: Array, axis: int, descending: bool) -> Array:
    """The stable permutation that sorts, NaN the largest: by Python's sort."""
    rows = np.moveaxis(x, axis, -1)
    places = np.empty(rows.shape, np.int64)
    for row in np.ndindex(rows.shape[:-1]):
        keys = [(bool(np.isnan(v)), 0.0 if np.isnan(v) else float(v)) for v in rows[row]]
        if descending:
            keys = [(not nan, -v) for nan, v in keys]
        places[row] = sorted(range(len(keys)), key=keys.__getitem__)
    return np.moveaxis(places, -1, axis)


def may_change_places(x: Bounded, axis: int) -> Array:
    """Rows in which two elements lie within each other's bounds."""
    values = np.moveaxis(np.asarray(x.value, np.float64), axis, -1)
    errors = np.moveaxis(np.broadcast_to(x.error, x.shape), axis, -1)
    near = np.abs(values[..., :, None] - values[..., None, :])
    reach = errors[..., :, None] + errors[..., None, :]
    doubt = (reach > 0) & ~(near > reach)
    places = np.arange(values.shape[-1])
    doubt[..., places, places] = np.isinf(errors) | np.isnan(values) & (errors > 0)
    lost = np.any(doubt, axis=(-1, -2))[..., None]
    return np.moveaxis(np.broadcast_to(lost, values.shape), -1, axis)


@whole_rows
def sort(x: Bounded, axis: int, descending: bool) -> Bounded:
    def function(a: Array) -> Array:
        return np.take_along_axis(a, order(a, axis, descending), axis)

    return monotone(function, x, along_rows(axis), 0)


@whole_rows
def sort_like(values: Bounded, x: Bounded, axis: int, descending: bool) -> Bounded:
    places = order(x.value, axis, descending)
    moved = values.map(lambda a, fill: np.take_along_axis(a, places, axis))
    return unknown_where(moved, may_change_places(x, axis))


@whole_rows
def unsort(values: Bounded, x: Bounded, axis: int, descending: bool) -> Bounded:
    places = order(x.value, axis, descending)

    def put(a: Array, fill: Any) -> Array:
        result = np.empty_like(a)
        np.put_along_axis(result, places, a, axis)
        return result

    return unknown_where(values.map(put), may_change_places(x, axis))


def rank(x: Array, axis: int, descending: bool) -> Array:
    places = order(x, axis, descending)
    ranks = np.empty_like(places)
    shape = [-1 if i == axis % x.ndim else 1 for i in range(x.ndim)]
    np.put_along_axis(
        ranks, places, np.broadcast_to(np.arange(x.shape[axis]).reshape(shape), x.shape), axis
    )
    return ranks


@whole_rows
def top_k_mask(x: Bounded, axis: int, k: int) -> Bounded:
    mask = Bounded(rank(x.value, axis, True) < k, np.zeros(x.shape), BOOL)
    return unknown_where(mask, may_change_places(x, axis))


def first_of(largest: bool) -> Function:
    def function(x: Bounded, axis: int | None) -> Bounded:
        if axis is None or not x.shape:
            flat = x.map(lambda a, fill: np.reshape(a, -1))
            return function(flat, 0).map(lambda a, fill: np.reshape(a, x.shape))
        key = np.where(np.isnan(x.value), np.inf, x.value if largest else -x.value)
        nan = np.isnan(x.value)
        best = np.max(key, axis=axis, keepdims=True)
        is_best = np.where(np.any(nan, axis=axis, keepdims=True), nan, key == best)
        mask = is_best & (np.cumsum(is_best, axis=axis) == 1)
        return unknown_where(Bounded(mask, np.zeros(x.shape), BOOL), may_change_places(x, axis))

    return function


def last_true(mask: Array, axis: int) -> Array:
    """The index of the latest True along the axis; -1 before the first."""
    shape = [-1 if i == axis % mask.ndim else 1 for i in range(mask.ndim)]
    places = np.where(mask, np.arange(mask.shape[axis]).reshape(shape), -1)
    return np.maximum.accumulate(places, axis=axis)


@whole_rows
def hold(x: Bounded, mask: Bounded, axis: int) -> Bounded:
    latest = last_true(np.asarray(mask.value, bool), axis)

    def move(a: Array, fill: Any) -> Array:
        return np.where(latest < 0, fill, np.take_along_axis(a, np.maximum(latest, 0), axis))

    return unknown_where(x.map(move), along_rows(axis)(np.broadcast_to(mask.error > 0, x.shape)))


@whole_rows
def unhold(x: Bounded, mask: Bounded, axis: int) -> Bounded:
    latest = last_true(np.asarray(mask.value, bool), axis)

    def function(a: Array) -> Array:
        rows, at = np.moveaxis(a, axis, -1), np.moveaxis(latest, axis, -1)
        result = np.zeros(rows.shape)
        for place in np.ndindex(rows.shape):
            if at[place] >= 0:
                result[(*place[:-1], at[place])] += rows[place]
        return np.moveaxis(result, -1, axis)

    unsure = along_rows(axis)(np.broadcast_to(mask.error > 0, x.shape))
    return unknown_where(
        monotone(function, x, along_rows(axis), 2 + x.shape[axis], function), unsure
    )


# --- quantiles ------------------------------------------------------------------------------------


def as_rows(a: Array, axes: tuple[int, ...]) -> Array:
    rest = [i for i in range(a.ndim) if i not in axes]
    return a.transpose(*rest, *axes).reshape([a.shape[i] for i in rest] + [-1])


def quantile(x: Bounded, axis: Axis, keepdims: bool, q: float) -> Bounded:
    axes = axes_of(x, axis)
    shape = [1 if i in axes else n for i, n in enumerate(x.shape)]

    def function(a: Array) -> Array:
        rows = np.sort(as_rows(np.asarray(a), axes), axis=-1)
        place = q * (rows.shape[-1] - 1)
        low = int(place)
        share = place - low
        value = rows[..., low]
        if share:
            value = value * (1 - share) + rows[..., low + 1] * share
        value = np.where(np.isnan(rows[..., -1]), np.nan, value)
        return value.reshape(shape) if keepdims else value

    def size(a: Array) -> Array:
        return np.max(a, axis=axes, keepdims=keepdims, initial=0)

    return monotone(function, x, any_over(axes, keepdims), 4, size)


def median(x: Bounded, axis: Axis, keepdims: bool) -> Bounded:
    return quantile(x, axis, keepdims, 0.5)


def quantile_weights(x: Bounded, axis: Axis, q: float) -> Bounded:
    if not x.shape:
        return Bounded(np.ones(()), np.where(x.lost, np.inf, 0.0), x.dtype)
    axes = axes_of(x, axis)
    ends = tuple(range(-len(axes), 0))
    moved = x.map(lambda a, fill: np.moveaxis(a, axes, ends))
    rows = moved.map(lambda a, fill: a.reshape((*a.shape[: a.ndim - len(axes)], -1)))
    ranks, place = rank(rows.value, -1, False), q * (rows.shape[-1] - 1)
    low = int(place)
    share = place - low
    weights = np.where(
        ranks == low, 1 - share, np.where((ranks == low + 1) & (share > 0), share, 0.0)
    )
    result = unknown_where(settle(weights, 0 * weights, x.dtype, 2), may_change_places(rows, -1))
    return result.map(
        lambda a, fill: np.moveaxis(np.broadcast_to(a, rows.shape).reshape(moved.shape), ends, axes)
    )


WIDE: dict[str, Function] = {
    "cumsum": cumsum,
    "cumprod": cumprod,
    "unhold": unhold,
    "median": median,
    "quantile": quantile,
}
ROWS: dict[str, Function] = {
    "cummax": running("maximum"),
    "cummin": running("minimum"),
    "hold": hold,
    "sort": sort,
    "sort_like": sort_like,
    "unsort": unsort,
    "argmax_mask": first_of(True),
    "argmin_mask": first_of(False),
    "top_k_mask": top_k_mask,
    "quantile_weights": quantile_weights,
}
