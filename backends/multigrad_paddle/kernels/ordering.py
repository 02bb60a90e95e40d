"""Paddle's rows of the ordering family, each function named as its op."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import paddle

from multigrad.backend import orderings, rows_of

from .elementwise import exp, where
from .shapes import Axis, axes_of, concatenate, cut, moveaxis, reshape, size
from .widening import INT64, Tensor, equal, is_float, rounded, wide


def lifted(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Take scalars as arrays of one element, and leave empty ones as they are."""

    @functools.wraps(function)
    def call(*arrays: Tensor, axis: Axis, **attrs: object) -> Tensor:
        if 0 in arrays[0].shape:
            return paddle.assign(arrays[0])
        if all(len(x.shape) == 0 for x in arrays):
            lines = (paddle.reshape(x, [1]) for x in arrays)
            return paddle.reshape(function(*lines, axis=0, **attrs), [])
        return function(*arrays, axis=axis, **attrs)

    return call


def reversed_if(reverse: bool, x: Tensor, axis: int) -> Tensor:
    return paddle.flip(x, [axis]) if reverse else x


@lifted
def cumsum(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    sums = paddle.cumsum(reversed_if(reverse, wide(x), axis), axis)
    return rounded(reversed_if(reverse, sums, axis), x.dtype)


@lifted
def cumprod(x: Tensor, *, axis: int) -> Tensor:
    return rounded(paddle.cumprod(wide(x), axis), x.dtype)


def scan(combine: Callable[[Tensor, Tensor], Tensor], x: Tensor, axis: int) -> Tensor:
    """Combine each element with all before it, in log2(length) steps."""
    shift, length = 1, x.shape[axis]
    while shift < length:
        later, earlier = cut(x, axis, shift, length - shift), cut(x, axis, 0, length - shift)
        x = concatenate(cut(x, axis, 0, shift), combine(later, earlier), axis=axis)
        shift *= 2
    return x


def add_exponentials(a: Tensor, b: Tensor) -> Tensor:
    gap = where(equal(a, b), 0.0, -paddle.abs(a - b))
    return paddle.maximum(a, b) + paddle.log1p(exp(gap))


@lifted
def logcumsumexp(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    sums = scan(add_exponentials, reversed_if(reverse, wide(x), axis), axis)
    return rounded(reversed_if(reverse, sums, axis), x.dtype)


@lifted
def discounted_sum(values: Tensor, y: Tensor, *, axis: int, reverse: bool) -> Tensor:
    """Combined with neighbors at twice the distance in each step."""
    sums, y = (reversed_if(reverse, wide(x), axis) for x in (values, y))
    shift, length = 1, values.shape[axis]
    while shift < length:
        later, earlier = (cut(y, axis, at, length - shift) for at in (shift, 0))
        gap = paddle.minimum(later - earlier, paddle.zeros_like(later))
        share = where(equal(later, earlier), 1.0, exp(gap))
        added = cut(sums, axis, shift, length - shift) + share * cut(sums, axis, 0, length - shift)
        sums, shift = concatenate(cut(sums, axis, 0, shift), added, axis=axis), shift * 2
    return rounded(reversed_if(reverse, sums, axis), values.dtype)


@lifted
def cummax(x: Tensor, *, axis: int) -> Tensor:
    return rounded(scan(paddle.maximum, wide(x), axis), x.dtype)


@lifted
def cummin(x: Tensor, *, axis: int) -> Tensor:
    return rounded(scan(paddle.minimum, wide(x), axis), x.dtype)


def positions(x: Tensor, axis: int) -> Tensor:
    """The index of each element along an axis, in a shape that broadcasts."""
    rank = len(x.shape)
    places = paddle.arange(x.shape[axis] if rank else 1, dtype=INT64)
    after = rank - 1 - axes_of(x, axis)[0] if rank else 0
    return paddle.reshape(places, [-1] + [1] * after) if rank else places[0]


def last_true(mask: Tensor, axis: int) -> Tensor:
    """The index of the latest True along an axis, -1 before the first."""
    return scan(paddle.maximum, where(mask, positions(mask, axis), -1), axis)


@lifted
def hold(x: Tensor, mask: Tensor, *, axis: int) -> Tensor:
    latest = last_true(mask, axis)
    return where(latest < 0, 0.0, gather(x, clipped(latest), axis))


@lifted
def unhold(x: Tensor, mask: Tensor, *, axis: int) -> Tensor:
    latest = last_true(mask, axis)
    values = where(latest < 0, 0.0, wide(x))
    return rounded(scatter_add(values, clipped(latest), x, axis), x.dtype)


def clipped(places: Tensor) -> Tensor:
    return paddle.maximum(places, paddle.zeros_like(places))


def gather(x: Tensor, places: Tensor, axis: int) -> Tensor:
    """The values at places along an axis, each row by its own."""
    # take_along_axis (3.3, CPU) has no kernel for these.
    taken = x.astype(INT64) if x.dtype in (paddle.bool, paddle.int8) else wide(x)
    return rounded(paddle.take_along_axis(taken, places, axis, broadcast=False), x.dtype)


def scatter_add(values: Tensor, places: Tensor, like: Tensor, axis: int) -> Tensor:
    """Sums of the values at places along an axis of zeros like a tensor."""
    zeros = paddle.zeros(like.shape, values.dtype)
    if 0 in values.shape:
        return zeros
    return paddle.put_along_axis(zeros, places, values, axis, reduce="add", broadcast=False)


def order(x: Tensor, axis: int, descending: bool) -> Tensor:
    """The stable permutation that sorts x; NaN is the largest number."""
    key = wide(x.detach())
    if not is_float(key):
        return paddle.argsort(key, axis, descending, stable=True)
    is_nan = paddle.isnan(key)
    # Its sort leaves NaN anywhere when descending (3.3): first by value, then, stably, by NaN.
    first = paddle.argsort(where(is_nan, 0.0, key), axis, descending, stable=True)
    flags = paddle.take_along_axis(is_nan.astype(INT64), first, axis)
    second = paddle.argsort(flags, axis, descending, stable=True)
    return paddle.take_along_axis(first, second, axis)


def ranks(x: Tensor, axis: int, descending: bool) -> Tensor:
    """The place of each element in sorted x."""
    return paddle.argsort(order(x, axis, descending), axis)


def argmax_mask(x: Tensor, *, axis: int | None) -> Tensor:
    return first_only(x, axis, True)


def argmin_mask(x: Tensor, *, axis: int | None) -> Tensor:
    return first_only(x, axis, False)


def first_only(x: Tensor, axis: int | None, largest: bool) -> Tensor:
    """Mark the one element that is looked for."""
    if 0 in x.shape:
        return paddle.zeros(x.shape, "bool")
    if axis is None or len(x.shape) == 0:
        flat = paddle.reshape(x, [-1])
        return paddle.reshape(positions(flat, 0) == find(flat, 0, largest), x.shape)
    return positions(x, axis) == find(x, axis, largest)


def find(x: Tensor, axis: int, largest: bool) -> Tensor:
    """The place of the first largest or smallest element along an axis; a NaN is either."""
    key = wide(x.detach())
    extreme = (paddle.max if largest else paddle.min)(key, axis, keepdim=True)
    found = equal(key, extreme)
    if is_float(key):
        found = found | paddle.isnan(key)
    places = paddle.where(found, positions(x, axis), x.shape[axis])
    return paddle.min(places, axis, keepdim=True)


def top_k_mask(x: Tensor, *, axis: int, k: int) -> Tensor:
    if len(x.shape) == 0:
        return paddle.full([], k > 0, "bool")
    return ranks(x, axis, True) < k if 0 not in x.shape else paddle.zeros(x.shape, "bool")


def as_rows(x: Tensor, axes: list[int]) -> Tensor:
    """x with the axes given merged into one, at the end."""
    last = moveaxis(x, source=axes, destination=list(range(-len(axes), 0))) if axes else x
    kept = len(x.shape) - len(axes)
    return reshape(last, shape=(*last.shape[:kept], math.prod(last.shape[kept:])))


def quantile(x: Tensor, *, axis: Axis, keepdims: bool, q: float) -> Tensor:
    axes = axes_of(x, axis)
    rows = as_rows(wide(x), axes)
    n = rows.shape[-1]
    if n == 0:
        result = paddle.full(rows.shape[:-1], math.nan, rows.dtype)
    else:
        rows = gather(rows, order(rows, -1, False), -1)
        low, weight = math.floor(q * (n - 1)), q * (n - 1) % 1
        result = rows[..., low]
        if weight:
            result = result * (1 - weight) + rows[..., low + 1] * weight
        result = where(paddle.isnan(rows[..., -1]), math.nan, result)
    if keepdims:
        result = reshape(result, shape=tuple(1 if i in axes else n for i, n in enumerate(x.shape)))
    return rounded(result, x.dtype)


def quantile_weights(x: Tensor, *, axis: Axis, q: float) -> Tensor:
    if size(x) == 0:
        return paddle.zeros(x.shape, x.dtype)
    axes = axes_of(x, axis)
    rows = as_rows(x, axes)
    place = q * (rows.shape[-1] - 1)
    low, weight = math.floor(place), place % 1
    found, kind = ranks(rows, -1, False), wide(x).dtype
    below, above = ((found == at).astype(kind) for at in (low, low + 1))
    weights = below * (1 - weight) + above * weight
    if not axes:
        return rounded(reshape(weights, shape=tuple(x.shape)), x.dtype)
    back = list(range(-len(axes), 0))
    kept = [n for i, n in enumerate(x.shape) if i not in axes]
    weights = reshape(weights, shape=(*kept, *(x.shape[i] for i in axes)))
    return rounded(moveaxis(weights, source=back, destination=axes), x.dtype)


OPS = {**orderings(order, gather), **rows_of(vars())}
