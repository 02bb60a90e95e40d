"""jax's exchange between devices: sums and extremes over mapped axes, arrays passed around.

One graph serves all shards, so functions that tell shards apart, or count them, are refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from multigrad.capture.values.tracer import V
from multigrad.trace.xp import all as xp

from .families import JAX

Tensor = Any
Names = tuple[str, ...]  # of mapped axes


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


def over_each(exchange: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return an exchange of each array of a tree, given the exchange of one array."""

    @functools.wraps(exchange)
    def call(
        x: Any, axis_name: Any, *args: Any, axis_index_groups: Any = None, **options: Any
    ) -> Any:
        names = names_of(axis_name, axis_index_groups)
        leaves, tree = jax.tree.flatten(x)
        if not all(isinstance(leaf, V) for leaf in leaves):
            raise TypeError("a number, which counts shards; take the mean over them: jax.lax.pmean")
        return jax.tree.unflatten(
            tree, [exchange(leaf, names, *args, **options) for leaf in leaves]
        )

    return call


@over_each
def psum(x: Tensor, names: Names) -> Tensor:
    return xp.all_sum(x, names)


@over_each
def pmax(x: Tensor, names: Names) -> Tensor:
    return xp.all_max(x, names)


@over_each
def pmin(x: Tensor, names: Names) -> Tensor:
    return -xp.all_max(-x, names)


@over_each
def pmean(x: Tensor, names: Names) -> Tensor:
    # one number is exchanged to count the shards
    return xp.all_sum(x, names) / xp.all_sum(xp.ones_like(xp.sum(x)), names, of=x)


@over_each
def all_gather(x: Tensor, names: Names, *, axis: int = 0, tiled: bool = False) -> Tensor:
    # Without tiling a new axis counts the shards.
    return xp.all_gather(x if tiled else xp.expand_dims(x, axis), names, axis)


@over_each
def psum_scatter(
    x: Tensor, names: Names, *, scatter_dimension: int = 0, tiled: bool = False
) -> Tensor:
    part = xp.reduce_scatter(x, names, scatter_dimension)
    return part if tiled else xp.squeeze(part, scatter_dimension)


@over_each
def all_to_all(
    x: Tensor, names: Names, split_axis: int, concat_axis: int, *, tiled: bool = False
) -> Tensor:
    if tiled:
        return xp.all_to_all(x, names, split_axis, concat_axis)
    return xp.all_to_all(xp.moveaxis(x, split_axis, concat_axis), names, concat_axis, concat_axis)


def ppermute(x: Any, axis_name: Any, perm: Any) -> Any:
    # jax's has no axis_index_groups
    return over_each(lambda leaf, names: xp.ppermute(leaf, list(perm), names))(x, axis_name)


def itself(x: Any, *args: Any, **options: Any) -> Any:
    """Return x: a mark of placement or of varying axes, which a graph does not have."""
    return x


COLLECTIVES: dict[Any, Any] = JAX.taking_the_same(
    {
        __name__: """
            lax.psum; lax.pmax; lax.pmin; lax.pmean; lax.all_gather; lax.psum_scatter;
            lax.all_to_all; lax.ppermute; itself: lax.pcast lax.with_sharding_constraint
        """
    }
)
WHY_REFUSED = (
    "which a graph that is one for all shards does not have. Take sums and extremes over shards "
    "(psum, pmean, pmax, pmin), hand arrays around (all_gather, psum_scatter, all_to_all, "
    "ppermute), or register the rule with native=True"
)
REFUSED: dict[Any, str] = dict.fromkeys(
    (lax.axis_index, lax.axis_size, lax.pshuffle, lax.pswapaxes), WHY_REFUSED
)
