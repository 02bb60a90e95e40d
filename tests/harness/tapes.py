"""A gradient by TensorFlow's tape, as a function that code may compile, map and differentiate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Tensor: TypeAlias = Any


def taped(f: Callable[[Tensor], Tensor], **options: Any) -> Callable[[Tensor], Tensor]:
    """Return the function that gives the gradient of `sum(f(x))`, with options of its tape's."""
    import tensorflow as tf

    def gradient(x: Tensor) -> Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x, **options)

    return gradient
