"""`xg.vjp` on TensorFlow, and what guards a derivative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.eager.forwardprop_util import pack_tangents

from multigrad.engine.functions.calls.arguments import replace_at
from multigrad.errors import GradientError

Tensor: TypeAlias = Any
Run: TypeAlias = Callable[[Sequence[Tensor]], list[Any]]


def vjp(
    run: Run, inputs: Sequence[Tensor]
) -> tuple[list[Any], Callable[[Sequence[Any]], list[Tensor | None]]]:
    """Return the outputs of a function of tensors, and its pullback to one gradient per input."""
    copies = [tf.identity(x) for x in inputs]
    wrt = [i for i, x in enumerate(copies) if x.dtype.is_floating]
    # the pullback may be called several times
    with tf.GradientTape(persistent=True) as tape:
        for i in wrt:
            tape.watch(copies[i])
        outputs = run(copies)
    float_positions = [i for i, y in enumerate(outputs) if tf.is_tensor(y) and y.dtype.is_floating]

    def pullback(cotangents: Sequence[Any]) -> list[Tensor | None]:
        upstream = [
            tf.zeros_like(outputs[i])
            if cotangents[i] is None
            else tf.cast(cotangents[i], outputs[i].dtype)
            for i in float_positions
        ]
        input_gradients = tape.gradient(
            [outputs[i] for i in float_positions],
            [copies[i] for i in wrt],
            output_gradients=upstream,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        gradients = [tf.convert_to_tensor(gradient) for gradient in input_gradients]
        return replace_at([None] * len(copies), wrt, gradients)

    return outputs, pullback


def refuse_gradient(message: str) -> Callable[[Any], Any]:
    def refuse(number: Any) -> Any:
        if not isinstance(number, tf.Tensor | tf.Variable):
            return number
        if is_asked(number):
            raise GradientError(message)
        return tf.convert_to_tensor(number)

    return refuse


def is_asked(x: Any) -> bool:
    """Return whether a tape or accumulator follows a tensor; in a graph one may do so later."""
    if not tf.executing_eagerly():
        return True
    x = tf.convert_to_tensor(x)
    return record.should_record_backprop([x]) or bool(pack_tangents([x]).tangents)


def forbid_derivative(message: str) -> Callable[..., Tensor]:
    """Return the identity on its first argument, which raises where a derivative is taken."""

    @tf.custom_gradient
    def once(x: Tensor, *others: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        def refuse(upstream: Tensor) -> Tensor:
            raise GradientError(message)

        return tf.identity(x), refuse

    return once
