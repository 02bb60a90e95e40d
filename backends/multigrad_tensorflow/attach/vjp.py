"""`xg.vjp` on TensorFlow."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.eager.forwardprop_util import pack_tangents

from multigrad.errors import GradientError

Tensor: TypeAlias = Any


def vjp(
    run: Callable[[Sequence[Tensor]], list[Any]], inputs: Sequence[Tensor]
) -> tuple[list[Any], Callable[[Sequence[Any]], list[Tensor | None]]]:
    """Return what a function of tensors gives, and the map from cotangents to one gradient per
    input.
    """
    own = [tf.identity(x) for x in inputs]
    wrt = [i for i, x in enumerate(own) if x.dtype.is_floating]
    with tf.GradientTape(persistent=True) as tape:
        for i in wrt:
            tape.watch(own[i])
        outputs = run(own)
    active = [i for i, y in enumerate(outputs) if tf.is_tensor(y) and y.dtype.is_floating]

    def pullback(cotangents: Sequence[Any]) -> list[Tensor | None]:
        gradients: list[Tensor | None] = [None] * len(own)
        given = [
            tf.zeros_like(outputs[i])
            if cotangents[i] is None
            else tf.cast(cotangents[i], outputs[i].dtype)
            for i in active
        ]
        found = tape.gradient(
            [outputs[i] for i in active],
            [own[i] for i in wrt],
            output_gradients=given,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        for i, gradient in zip(wrt, found, strict=True):
            gradients[i] = tf.convert_to_tensor(gradient)
        return gradients

    return outputs, pullback


def refuse_gradient(message: str) -> Callable[[Any], Any]:
    """Return the identity on a number, which refuses a tensor that asks for a gradient; in a graph
    each may.
    """

    def refuse(number: Any) -> Any:
        if not isinstance(number, tf.Tensor | tf.Variable):
            return number
        if is_asked(number):
            raise GradientError(message)
        return tf.convert_to_tensor(number)

    return refuse


def is_asked(x: Any) -> bool:
    """Return whether a tape or an accumulator follows a tensor, or may follow it later."""
    if not tf.executing_eagerly():
        return True
    x = tf.convert_to_tensor(x)
    return record.should_record_backprop([x]) or bool(pack_tangents([x]).tangents)


def forbid_derivative(message: str) -> Callable[[Tensor], Tensor]:
    """Return the identity, which raises where a derivative of it is taken."""

    @tf.custom_gradient
    def once(x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        def refuse(upstream: Tensor) -> Tensor:
            raise GradientError(message)

        return tf.identity(x), refuse

    return once


def note_use(tensor: Tensor, outputs: Sequence[Any]) -> Callable[[], bool]:
    """Return whether the tape of a call still records, or its graph is still being made."""
    copy = tf.identity(tensor)
    if isinstance(copy, tf.__internal__.EagerTensor):
        return lambda: record.should_record_backprop([copy])
    graph = weakref.ref(copy.graph)
    return lambda: graph() is tf.compat.v1.get_default_graph()
