"""A whole function that runs as it is, in a custom gradient of TensorFlow's."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from .attach import custom_gradient, localize, run_forward, stop

Tensor: TypeAlias = Any


@dataclass(slots=True)
class Delivery:
    """The variables that a function has read, and the gradients that it delivers to them."""

    variables: Sequence[Any]
    gradients: Sequence[Tensor | None]


# While a pull runs: for a gradient function that takes `variables`, as TensorFlow's do.
DELIVERY: contextvars.ContextVar[Delivery | None] = contextvars.ContextVar(
    "multigrad_tensorflow_delivery", default=None
)


def attach_function(
    run: Callable[..., Any], tensors: tuple[Tensor, ...], name: str
) -> tuple[Tensor, ...]:
    """Apply a function that gives its outputs and what maps their cotangents to gradients.

    A variable that it reads besides its arguments gets the gradient that its own gradient function delivers, or none.
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
            delivery = Delivery(variables or (), [None] * len(variables or ()))
            reset = DELIVERY.set(delivery)
            try:
                gradients = pull(*given)
            finally:
                DELIVERY.reset(reset)
            return gradients if variables is None else (gradients, list(delivery.gradients))

        return outputs, backward

    outputs = function(*map(localize, tensors))
    return stop(outputs, marked) if marked else outputs
