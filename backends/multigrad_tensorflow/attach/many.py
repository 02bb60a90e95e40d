"""A rule on many gradients at once, outside of autodiff."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf

if TYPE_CHECKING:
    from multigrad.backend import Graph

Tensor: TypeAlias = Any


def many(
    graph: Graph, emit: Callable[[Graph], Callable[..., Any]], in_place: bool
) -> Callable[[Sequence[Tensor], Sequence[Any]], list[Tensor] | None] | None:
    """Return a rule on gradients as one function; see `Autodiff.many`."""
    rule = emit(graph)

    @tf.function(autograph=False)
    def act(gradients: list[Tensor], values: list[Tensor]) -> list[Tensor]:
        return [rule(gradient, *values) for gradient in gradients]

    def run(gradients: Sequence[Tensor], values: Sequence[Any]) -> list[Tensor] | None:
        if not tf.executing_eagerly() or not all(map(is_concrete, gradients)):
            return None
        dtype = gradients[0].dtype
        return act(list(gradients), [tf.constant(value, dtype) for value in values])

    return run


def is_concrete(tensor: Any) -> bool:
    return isinstance(tensor, tf.Tensor) and not tf.is_symbolic_tensor(tensor)
