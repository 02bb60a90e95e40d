"""A custom gradient around the user's own forward and backward, which run as they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from multigrad.engine.functions.calls.imported_gradients import pull_delivering

from ..core.attach.render import custom_gradient, localize, run_forward, stop

Tensor: TypeAlias = tf.Tensor


def attach(run: Callable[..., Any], tensors: tuple[Tensor, ...], name: str) -> tuple[Tensor, ...]:
    """Apply the user's own forward and backward to tensors.

    A variable that the function reads, besides its arguments, gets the gradient that its own
    gradient function delivers, or none.
    """
    undifferentiable: tuple[int, ...] = ()

    @custom_gradient
    def function(*inputs: Tensor) -> tuple[tuple[Tensor, ...], Callable[..., Any]]:
        pull: Any = None

        def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
            # `run_forward` takes a function of the outputs only, so the pullback leaves by a
            # variable.
            nonlocal pull, undifferentiable
            outputs, pull, undifferentiable = run(*inputs)
            return outputs

        outputs = run_forward(forward, *inputs)

        def backward(*cotangents: Any, variables: Sequence[Any] | None = None) -> Any:
            upstream = [
                tf.zeros_like(output) if cotangent is None else cotangent
                for cotangent, output in zip(cotangents, outputs, strict=True)
            ]
            gradients, variable_gradients = pull_delivering(pull, upstream, variables or ())
            return gradients if variables is None else (gradients, variable_gradients)

        return outputs, backward

    outputs = function(*map(localize, tensors))
    return stop(outputs, undifferentiable) if undifferentiable else outputs
