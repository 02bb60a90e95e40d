"""MLX's kernels of the ordering ops, each named after its op."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from multigrad.backend import lifted, orderings, rows_of

from .elementwise import accumulated, exp, logaddexp
from .shapes import flip

Tensor = Any
Axis = int | tuple[int, ...] | None


# --- scans -------------------------------------------------------------------------------------
@lifted
def cumsum(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    if not x.size:  # MLX before 0.32.4 ends the process
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
    """Combine each element with all before it along an axis, or with `reverse` all after it."""
    last = [mx.swapaxes(flip(x, axis=axis) if reverse else x, axis, -1) for x in arrays]
    length, shift = last[0].shape[-1], 1
    # Each step doubles the distance, so that there are log2(length) of them.
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
    """Return the index of each element along an axis, in a shape that broadcasts."""
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    return mx.arange(x.shape[axis], dtype=mx.int64).reshape(shape)


def put(shape: tuple[int, ...], index: Any, values: Tensor) -> Tensor:
    """Return sums of the values at positions; MLX refuses to add nothing, or to nothing."""
    sums = mx.zeros(shape, values.dtype)
    return sums.at[index].add(values) if values.size and sums.size else sums


# --- sorting -----------------------------------------------------------------------------------
def order(x: Tensor, axis: int, descending: bool) -> Tensor:
    if not x.size:
        return mx.zeros(x.shape, mx.uint32)
    # NaN comes last.
    if not descending:
        return mx.argsort(x, axis=axis)
    # mx.argsort is stable and ascending: sorting from the end keeps equal elements in order.
    last = x.shape[axis] - 1
    return last - flip(mx.argsort(flip(x, axis=axis), axis=axis).astype(mx.int32), axis=axis)


def take(x: Tensor, places: Tensor, axis: int) -> Tensor:
    return mx.take_along_axis(x, places, axis)


OPS = {**orderings(order, take), **rows_of(vars())}
