"""JAX's rows of the family of places, each function named as its op.

Its integers are int32 unless int64 is switched on. What lies outside cannot raise: it is NaN where
it is taken, as `jnp.take` has it, and dropped where it is put.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from multigrad.backend import lifted, rows_of
from multigrad.graph import ops

from .elementwise import accumulated
from .ordering import order, positions

Tensor = Any


@lifted
def take_along(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    return jnp.take_along_axis(x, from_front(indices, x.shape[axis]), axis)


def from_front(indices: Tensor, length: int) -> Tensor:
    """Indices that none is counted from the end of: a negative one lies outside."""
    return jnp.where(indices < 0, length, indices)


def rows(indices: Tensor, axis: int) -> Any:
    """The index of each element, but by `indices` along an axis."""
    places = list(jnp.indices(indices.shape, sparse=True))
    places[axis] = indices
    return tuple(places)


@lifted
def untake_along(x: Tensor, indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    values = accumulated(x)
    sums = jnp.zeros(like.shape, values.dtype)
    return sums.at[rows(from_front(indices, like.shape[axis]), axis)].add(values).astype(x.dtype)


def take_at(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    return jnp.take(x, from_front(indices, x.shape[axis]), axis)


def take_inside(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    if not x.shape[axis]:
        return take_nearest(x, indices, axis=axis)
    return jnp.take(x, from_front(indices, x.shape[axis]), axis, mode="fill", fill_value=0)


def take_nearest(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    if not x.shape[axis]:
        before, after = x.shape[: axis % x.ndim], x.shape[axis % x.ndim + 1 :]
        return jnp.zeros((*before, *indices.shape, *after), x.dtype)
    return jnp.take(x, indices, axis, mode="clip")


def untake_at(x: Tensor, indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    axis = axis % like.ndim
    first = tuple(range(indices.ndim))
    values = jnp.moveaxis(accumulated(x), tuple(axis + i for i in first), first)
    shape = (like.shape[axis], *like.shape[:axis], *like.shape[axis + 1 :])
    sums = jnp.zeros(shape, values.dtype).at[from_front(indices, shape[0])].add(values)
    return jnp.moveaxis(sums, 0, axis).astype(x.dtype)


@lifted
def last_put(indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    last = jnp.full(like.shape, -1, indices.dtype)
    return last.at[rows(indices, axis)].max(positions(indices, axis))


OPS = {
    **rows_of(vars()),
    ops.UNTAKE_INSIDE: untake_at,
    ops.ARGMAX: lifted(jnp.argmax),
    ops.ARGMIN: lifted(jnp.argmin),
    ops.ARGSORT: lifted(order),
}
