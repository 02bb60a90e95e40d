"""A whole function that runs as it is, in a custom gradient of TensorFlow's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from multigrad.calls.variables import pull_delivering

from .attach import custom_gradient, localize, run_forward, stop

Tensor: TypeAlias = Any


def attach_function(
    run: Callable[..., Any], tensors: tuple[Tensor, ...], name: str
) -> tuple[Tensor, ...]:
    """Apply a function that gives its outputs and what maps their cotangents to gradients.

    A variable that it reads besides its arguments gets the gradient that its own gradient function
    delivers, or none.
    """
    marked: tuple[int, ...] = ()

    @custom_gradient
    def function(*inputs: Tensor) -> tuple[tuple[Tensor, ...], Callable[..., Any]]:
        pull: Any = None

        def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
            nonlocal pull, marked
            outputs, pull, marked = run(*inputs)
            return outputs

        outputs = run_forward(forward, *inputs)

        def backward(*cotangents: Any, variables: Sequence[Any] | None = None) -> Any:
            given = [
                tf.zeros_like(output) if cotangent is None else cotangent
                for cotangent, output in zip(cotangents, outputs, strict=True)
            ]
            pulled, of_variables = pull_delivering(pull, given, variables or ())
            return pulled if variables is None else (pulled, of_variables)

        return outputs, backward

    outputs = function(*map(localize, tensors))
    return stop(outputs, marked) if marked else outputs
