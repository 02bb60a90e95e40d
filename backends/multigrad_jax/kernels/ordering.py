"""JAX's rows of the ordering family, each function named as its op."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from multigrad.backend import lifted, orderings, rows_of

from .elementwise import accumulated

Tensor = Any
Axis = int | tuple[int, ...] | None


@lifted
def cumsum(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    return jax.lax.cumsum(accumulated(x), front(x, axis), reverse).astype(x.dtype)


@lifted
def cumprod(x: Tensor, *, axis: int) -> Tensor:
    return jnp.cumprod(accumulated(x), axis).astype(x.dtype)


@lifted
def logcumsumexp(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    return jax.lax.cumlogsumexp(accumulated(x), front(x, axis), reverse).astype(x.dtype)


@lifted
def discounted_sum(values: Tensor, y: Tensor, *, axis: int, reverse: bool) -> Tensor:
    def combine(earlier: Any, later: Any) -> Any:
        (total, y), (value, own) = earlier, later
        share = jnp.where(own == y, 1.0, jnp.exp(jnp.minimum(own - y, 0.0)))
        return value + share * total, own

    pair = (accumulated(values), accumulated(y))
    sums, _ = jax.lax.associative_scan(combine, pair, reverse=reverse, axis=front(values, axis))
    return sums.astype(values.dtype)


@lifted
def cummax(x: Tensor, *, axis: int) -> Tensor:
    return jax.lax.cummax(x, front(x, axis))


@lifted
def cummin(x: Tensor, *, axis: int) -> Tensor:
    return jax.lax.cummin(x, front(x, axis))


def front(x: Tensor, axis: int) -> int:
    """The axis counted from the front, which `jax.lax` needs."""
    return range(x.ndim)[axis]


def positions(x: Tensor, axis: int) -> Tensor:
    """The index of each element along an axis, in a shape that broadcasts."""
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    return jnp.arange(x.shape[axis]).reshape(shape)


def last_true(mask: Tensor, axis: int) -> Tensor:
    """The index of the latest True along an axis, -1 before the first."""
    places = jnp.where(mask, positions(mask, axis), -1)
    return jax.lax.cummax(places, front(mask, axis))


@lifted
def hold(x: Tensor, mask: Tensor, *, axis: int) -> Tensor:
    latest = last_true(mask, axis)
    values = jnp.take_along_axis(x, jnp.maximum(latest, 0), axis)
    return jnp.where(latest < 0, jnp.zeros((), x.dtype), values)


@lifted
def unhold(x: Tensor, mask: Tensor, *, axis: int) -> Tensor:
    latest = jnp.moveaxis(last_true(mask, axis), axis, -1)
    values = jnp.where(latest < 0, 0, jnp.moveaxis(accumulated(x), axis, -1))
    rows = jnp.indices(latest.shape, sparse=True)[:-1]
    sums = jnp.zeros_like(values).at[(*rows, jnp.maximum(latest, 0))].add(values)
    return jnp.moveaxis(sums, -1, axis).astype(x.dtype)


def order(x: Tensor, axis: int, descending: bool) -> Tensor:
    """The stable permutation that sorts x."""
    return jnp.argsort(x, axis=axis, stable=True, descending=descending)


def ranks(x: Tensor, axis: int) -> Tensor:
    """The place of each element in sorted x."""
    return order(order(x, axis, False), axis, False)


def take(x: Tensor, places: Tensor, axis: int) -> Tensor:
    """x at places along an axis, each row at its own."""
    return jnp.take_along_axis(x, places, axis)


@lifted
def argmax_mask(x: Tensor, *, axis: int | None) -> Tensor:
    return first_only(x, axis, jnp.argmax)


@lifted
def argmin_mask(x: Tensor, *, axis: int | None) -> Tensor:
    return first_only(x, axis, jnp.argmin)


def first_only(x: Tensor, axis: int | None, find: Callable[..., Tensor]) -> Tensor:
    """Mark the one element that `find` gives the index of."""
    if x.size == 0:
        return jnp.zeros(x.shape, bool)
    if axis is None:
        return (jnp.arange(x.size) == find(x)).reshape(x.shape)
    return positions(x, axis) == find(x, axis=axis, keepdims=True)


def axes_of(x: Tensor, axis: Axis) -> tuple[int, ...]:
    if axis is None or x.ndim == 0:
        return tuple(range(x.ndim))
    return axis if isinstance(axis, tuple) else (axis,)


def as_rows(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """x with the axes given merged into one, at the end."""
    kept = x.ndim - len(axes)
    last = jnp.moveaxis(x, axes, tuple(range(kept, x.ndim)))
    return last.reshape((*last.shape[:kept], math.prod(last.shape[kept:])))


def quantile(x: Tensor, *, axis: Axis, keepdims: bool, q: float) -> Tensor:
    axes = axes_of(x, axis)
    rows = as_rows(accumulated(x), axes)
    n = rows.shape[-1]
    if n == 0:
        result = jnp.full(rows.shape[:-1], jnp.nan, rows.dtype)
    else:
        rows = jnp.sort(rows, -1)
        low, weight = math.floor(q * (n - 1)), q * (n - 1) % 1
        result = rows[..., low]
        if weight:
            result = result * (1 - weight) + rows[..., low + 1] * weight
        result = jnp.where(jnp.isnan(rows[..., -1]), rows[..., -1], result)
    result = jnp.expand_dims(result, axes) if keepdims else result
    return result.astype(x.dtype)


def quantile_weights(x: Tensor, *, axis: Axis, q: float) -> Tensor:
    if x.size == 0:
        return jnp.zeros_like(x)
    axes = axes_of(x, axis)
    rows = as_rows(x, axes)
    place = q * (rows.shape[-1] - 1)
    low, weight = math.floor(place), place % 1
    found = ranks(rows, -1)
    weights = jnp.where(found == low, 1 - weight, jnp.where(found == low + 1, weight, 0.0))
    back = tuple(range(x.ndim - len(axes), x.ndim))
    weights = weights.reshape(jnp.moveaxis(x, axes, back).shape)
    return jnp.moveaxis(weights, back, axes).astype(x.dtype)


OPS = {**orderings(order, take), **rows_of(vars())}
