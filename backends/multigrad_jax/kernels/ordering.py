"""JAX's kernels of sorts, cumulative ops and extremes, named as their ops."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from multigrad.backend import lifted, ops, orderings, rows_of

Tensor = Any
Axis = int | tuple[int, ...] | None


@lifted
def cumsum(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    return jax.lax.cumsum(x, front(x, axis), reverse)


@lifted
def logcumsumexp(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    return jax.lax.cumlogsumexp(x, front(x, axis), reverse)


@lifted
def discounted_sum(values: Tensor, y: Tensor, *, axis: int, reverse: bool) -> Tensor:
    def combine(earlier: Any, later: Any) -> Any:
        (total, y), (value, own) = earlier, later
        # equal infinities would give NaN as a difference
        share = jnp.where(own == y, 1.0, jnp.exp(jnp.minimum(own - y, 0.0)))
        return value + share * total, own

    pair, axis = (values, y), front(values, axis)
    return jax.lax.associative_scan(combine, pair, reverse=reverse, axis=axis)[0]


@lifted
def cummax(x: Tensor, *, axis: int) -> Tensor:
    return jax.lax.cummax(x, front(x, axis))


@lifted
def cummin(x: Tensor, *, axis: int) -> Tensor:
    return jax.lax.cummin(x, front(x, axis))


def front(x: Tensor, axis: int) -> int:
    # `jax.lax` takes no negative axis
    return range(x.ndim)[axis]


def positions(x: Tensor, axis: int) -> Tensor:
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    return jnp.arange(x.shape[axis]).reshape(shape)


def order(x: Tensor, axis: int, descending: bool) -> Tensor:
    return jnp.argsort(x, axis=axis, stable=True, descending=descending)


def take(x: Tensor, places: Tensor, axis: int) -> Tensor:
    return jnp.take_along_axis(x, places, axis)


OPS = {
    **orderings(order, take),
    **rows_of(vars()),
    ops.CUMPROD: lifted(jnp.cumprod),
    ops.SORT: lifted(jnp.sort),
}
