"""Functions that run unchanged, with the user's own code for their backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from multigrad.functions.calls.gradients.variables import pull_delivering

from .guards import custom_gradient, localize, run_forward, stop

Tensor: TypeAlias = Any


def attach(run: Callable[..., Any], tensors: tuple[Tensor, ...], name: str) -> tuple[Tensor, ...]:
    """Apply the user's own forward and backward to tensors.

    A variable that the function reads, besides its arguments, gets the gradient that its own
    gradient function delivers, or none.
    """
    marked: tuple[int, ...] = ()

    @custom_gradient
    def function(*inputs: Tensor) -> tuple[tuple[Tensor, ...], Callable[..., Any]]:
        pull: Any = None

        def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
            # `run_forward` takes a function of the outputs only, so the pullback leaves by a
            # variable.
            nonlocal pull, marked
            outputs, pull, marked = run(*inputs)
            return outputs

        outputs = run_forward(forward, *inputs)

        def backward(*cotangents: Any, variables: Sequence[Any] | None = None) -> Any:
            upstream = [
                tf.zeros_like(output) if cotangent is None else cotangent
                for cotangent, output in zip(cotangents, outputs, strict=True)
            ]
            pulled, of_variables = pull_delivering(pull, upstream, variables or ())
            return pulled if variables is None else (pulled, of_variables)

        return outputs, backward

    outputs = function(*map(localize, tensors))
    return stop(outputs, marked) if marked else outputs
