"""`jax.lax`'s exchange between devices on symbolic values: sums and extremes over mapped axes,
and arrays that are handed around.

What tells shards apart, or counts them, has no op: a graph is one for all shards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from multigrad.capture.values.tracer import V
from multigrad.trace.xp import all as xp

from .families.arrays import JAX

Tensor = Any
Names = tuple[str, ...]


def names_of(axis_name: Any, axis_index_groups: Any) -> Names:
    """Return the names of mapped axes.

    Raises:
        TypeError: groups of shards, or an axis of the array itself, are meant.
    """
    if axis_index_groups is not None:
        raise TypeError("axis_index_groups; a mesh with an axis for the groups has an axis to name")
    names = axis_name if isinstance(axis_name, tuple | list) else (axis_name,)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"an axis {axis_name!r}; name the axis by a string")
    return tuple(names)


def over_each(
    exchange: Callable[[Tensor, Names], Tensor], x: Any, axis_name: Any, groups: Any
) -> Any:
    """Exchange each array of a tree over axes."""
    names = names_of(axis_name, groups)
    leaves, tree = jax.tree.flatten(x)
    if not all(isinstance(leaf, V) for leaf in leaves):
        raise TypeError("a number, which counts shards; take the mean over them: jax.lax.pmean")
    return jax.tree.unflatten(tree, [exchange(leaf, names) for leaf in leaves])


def psum(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    return over_each(xp.all_sum, x, axis_name, axis_index_groups)


def pmax(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    return over_each(xp.all_max, x, axis_name, axis_index_groups)


def pmin(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    return over_each(smallest, x, axis_name, axis_index_groups)


def pmean(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    return over_each(mean, x, axis_name, axis_index_groups)


def smallest(x: Tensor, names: Names) -> Tensor:
    return -xp.all_max(-x, names)


def mean(x: Tensor, names: Names) -> Tensor:
    """One number is exchanged for how many shards there are."""
    return xp.all_sum(x, names) / xp.all_sum(xp.ones_like(xp.sum(x)), names, of=x)


def all_gather(
    x: Any, axis_name: Any, *, axis_index_groups: Any = None, axis: int = 0, tiled: bool = False
) -> Any:
    gather = functools.partial(gathered, axis=axis, tiled=tiled)
    return over_each(gather, x, axis_name, axis_index_groups)


def psum_scatter(
    x: Any,
    axis_name: Any,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: Any = None,
    tiled: bool = False,
) -> Any:
    scatter = functools.partial(scattered, axis=scatter_dimension, tiled=tiled)
    return over_each(scatter, x, axis_name, axis_index_groups)


def all_to_all(
    x: Any,
    axis_name: Any,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: Any = None,
    tiled: bool = False,
) -> Any:
    exchange = functools.partial(exchanged, axis=split_axis, concat=concat_axis, tiled=tiled)
    return over_each(exchange, x, axis_name, axis_index_groups)


def ppermute(x: Any, axis_name: Any, perm: Any) -> Any:
    return over_each(functools.partial(permuted, pairs=list(perm)), x, axis_name, None)


def gathered(x: Tensor, names: Names, axis: int, tiled: bool) -> Tensor:
    """Unless it is tiled a new axis counts the shards, as of all here."""
    return xp.all_gather(x if tiled else xp.expand_dims(x, axis), names, axis)


def scattered(x: Tensor, names: Names, axis: int, tiled: bool) -> Tensor:
    part = xp.reduce_scatter(x, names, axis)
    return part if tiled else xp.squeeze(part, axis)


def exchanged(x: Tensor, names: Names, axis: int, concat: int, tiled: bool) -> Tensor:
    if tiled:
        return xp.all_to_all(x, names, axis, concat)
    return xp.all_to_all(xp.moveaxis(x, axis, concat), names, concat, concat)


def permuted(x: Tensor, names: Names, pairs: Any) -> Tensor:
    return xp.ppermute(x, pairs, names)


def itself(x: Any, *args: Any, **options: Any) -> Any:
    """What says where a value is, or over which axes its type may vary."""
    return x


HIDDEN: dict[Any, Any] = {
    **JAX.taking_the_same(
        {
            __name__: """
                lax.psum; lax.pmax; lax.pmin; lax.pmean; lax.all_gather; lax.psum_scatter;
                lax.all_to_all; lax.ppermute; itself: lax.pcast lax.with_sharding_constraint
            """,
        }
    ),
}
TELLS = (
    "which a graph that is one for all shards does not have. Take sums and extremes over shards "
    "(psum, pmean, pmax, pmin), hand arrays around (all_gather, psum_scatter, all_to_all, "
    "ppermute), or register the rule with native=True"
)
REFUSED: dict[Any, str] = dict.fromkeys(
    (
        lax.axis_index,
        lax.axis_size,
        lax.pshuffle,
        lax.pswapaxes,
    ),
    TELLS,
)
