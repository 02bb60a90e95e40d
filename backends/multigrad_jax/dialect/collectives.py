"""`jax.lax`'s exchange between devices on symbolic values: sums and extremes over mapped axes.

What tells shards apart, or hands arrays around, has no op: a graph is one for all shards.
"""

from __future__ import annotations

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


def itself(x: Any, *args: Any, **options: Any) -> Any:
    """What says where a value is, or over which axes its type may vary."""
    return x


HIDDEN: dict[Any, Any] = {
    **JAX.taking_the_same(
        {
            __name__: """
                lax.psum; lax.pmax; lax.pmin; lax.pmean; itself: lax.pcast
                lax.with_sharding_constraint
            """,
        }
    ),
}
TELLS = (
    "which a graph that is one for all shards does not have. Take sums and extremes over shards "
    "(psum, pmean, pmax, pmin), or register the rule with native=True"
)
REFUSED: dict[Any, str] = dict.fromkeys(
    (
        lax.axis_index,
        lax.axis_size,
        lax.all_gather,
        lax.all_to_all,
        lax.ppermute,
        lax.pshuffle,
        lax.psum_scatter,
        lax.pswapaxes,
    ),
    TELLS,
)
