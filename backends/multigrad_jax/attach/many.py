"""A rule on many gradients at once, outside of autodiff."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
from jax.core import Tracer

if TYPE_CHECKING:
    from multigrad.backend import Graph

Tensor: TypeAlias = Any


def many(
    graph: Graph, emit: Callable[[Graph], Callable[..., Any]], in_place: bool
) -> Callable[[Sequence[Tensor], Sequence[Any]], list[Tensor] | None] | None:
    """Return a rule on gradients in one compiled call; see `Autodiff.many`."""
    rule = emit(graph)

    def act(gradients: list[Tensor], values: tuple[Any, ...]) -> list[Tensor]:
        return [rule(gradient, *values) for gradient in gradients]

    compiled = jax.jit(act)

    def run(gradients: Sequence[Tensor], values: Sequence[Any]) -> list[Tensor] | None:
        if any(isinstance(each, Tracer) for each in gradients):
            return None  # it is compiled with what is around it
        if len({frozenset(each.devices()) for each in gradients}) > 1:
            return None
        return compiled(list(gradients), tuple(values))

    return run
