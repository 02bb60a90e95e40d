"""Draws for an array that is sharded: each device draws its part.

Under automatic sharding the compiler sees to that, as the layout of the counter is partitionable.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import jax
from jax.sharding import AxisType, NamedSharding

from ..versions import take_current_trace

Tensor: TypeAlias = Any


def draw_placed(draw: Callable[..., Tensor], words: Tensor, x: Tensor) -> Tensor:
    """Draw for the whole of x where x is, each device its part; by `draw(words, shape, dtype)`.

    The draw is told of explicit axes, which it has from nowhere else.
    """
    if isinstance(x, jax.core.Tracer):
        sharding = jax.typeof(x).sharding
        is_told = AxisType.Explicit in sharding.mesh.axis_types and is_staged()
        return draw(words, x.shape, x.dtype, sharding if is_told else None)
    if isinstance(words, jax.core.Tracer) or not is_split(x):
        return draw(words, x.shape, x.dtype)
    return draw_at(draw, x.shape, x.dtype, x.sharding)(words)


@lru_cache(maxsize=256)
def draw_at(
    draw: Callable[..., Tensor], shape: tuple[int, ...], dtype: Any, sharding: NamedSharding
) -> Callable[[Tensor], Tensor]:
    """Return a draw that each device makes its part of; a constraint has the compiler cut it."""
    kinds = {*sharding.mesh.axis_types}

    def run(words: Tensor) -> Tensor:
        with jax.sharding.use_abstract_mesh(sharding.mesh.abstract_mesh):
            if kinds == {AxisType.Explicit}:
                return draw(words, shape, dtype, sharding)
            drawn = draw(words, shape, dtype)
            if kinds == {AxisType.Auto}:
                return jax.lax.with_sharding_constraint(drawn, sharding)
            return drawn

    return jax.jit(run, out_shardings=sharding)


def is_split(x: Tensor) -> bool:
    """Return whether a concrete array is spread over several devices of a mesh."""
    sharding: Any = getattr(x, "sharding", None)
    return isinstance(sharding, NamedSharding) and not sharding.is_fully_replicated


def is_staged() -> bool:
    """Return whether code is traced for a compiler now, which knows the devices."""
    with take_current_trace() as trace:
        return type(trace).__name__ == "DynamicJaxprTrace"
