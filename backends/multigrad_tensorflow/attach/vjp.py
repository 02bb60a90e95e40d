"""`xg.vjp` on TensorFlow, and the other ways in which it runs a custom gradient: forward mode,
recomputation, a rule on many gradients.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.eager.forwardprop_util import pack_tangents

from multigrad.errors import GradientError

if TYPE_CHECKING:
    from multigrad.backend import Graph
from multigrad.backend.finding.values import run_on_tensors_alone

Tensor: TypeAlias = Any
Run: TypeAlias = Callable[[Sequence[Tensor]], list[Any]]


def vjp(
    run: Callable[[Sequence[Tensor]], list[Any]], inputs: Sequence[Tensor]
) -> tuple[list[Any], Callable[[Sequence[Any]], list[Tensor | None]]]:
    """Return the outputs of a function of tensors, and the pullback, which maps cotangents to one
    gradient per input.
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


def forbid_derivative(message: str) -> Callable[..., Tensor]:
    """Return the identity on its first argument, which raises where a derivative of it is taken, by
    any of its arguments.
    """

    @tf.custom_gradient
    def once(x: Tensor, *others: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
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


# --- many gradients at once, outside of autodiff --------------------------------------------------


def many(
    graph: Graph, emit: Callable[[Graph], Callable[..., Any]], in_place: bool
) -> Callable[[Sequence[Tensor], Sequence[Any]], list[Tensor] | None] | None:
    """Return a rule on gradients as one function; see `Autodiff.many`."""
    rule = emit(graph)

    @tf.function(autograph=False)
    def act(gradients: list[Tensor], values: list[Tensor]) -> list[Tensor]:
        return [rule(gradient, *values) for gradient in gradients]

    def run(gradients: Sequence[Tensor], values: Sequence[Any]) -> list[Tensor] | None:
        if not tf.executing_eagerly() or not all(
            isinstance(each, tf.Tensor) and not tf.is_symbolic_tensor(each) for each in gradients
        ):
            return None
        dtype = gradients[0].dtype
        return act(list(gradients), [tf.constant(value, dtype) for value in values])

    return run


# --- the other ways in which a custom gradient runs -----------------------------------------------


# Why there is none of the others.
LACKS = {
    "autocast": "TensorFlow has no autocast: layers of Keras choose their dtypes",
    "kept": "a backward is a closure, which holds what it reads",
}


def jvp(
    run: Run, inputs: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> tuple[list[Any], list[Any]]:
    """Return the outputs of a function of tensors, and their tangents.

    Raises:
        NotImplementedError: TensorFlow gives no tangents, as for gradients without a gradient.
    """
    own = [tf.identity(x) for x in inputs]
    pairs = [(x, t) for x, t in zip(own, tangents, strict=True) if t is not None]
    primals, given = (list(each) for each in zip(*pairs, strict=True))
    with tf.autodiff.ForwardAccumulator(primals, given) as accumulator:
        outputs = run(own)
    found = [accumulator.jvp(y) if tf.is_tensor(y) else None for y in outputs]
    if all(tangent is None for tangent in found):
        raise NotImplementedError(
            "tf.autodiff.ForwardAccumulator gives None: no output depends on the inputs, or what "
            "their gradients are made of has none"
        )
    return outputs, found


def checkpointed(run: Run, inputs: Sequence[Tensor]) -> tuple[list[Any], Callable[..., Any]]:
    """As `vjp` does, under `tf.recompute_grad`, of which tensors alone come."""

    def recomputed(own: Sequence[Tensor]) -> list[Any]:
        return run_on_tensors_alone(tf.recompute_grad, run, own, tf.is_tensor)

    return vjp(recomputed, inputs)


def mapped(run: Run, inputs: Sequence[Tensor]) -> tuple[list[Any], Callable[..., Any]]:
    """As `vjp` does, of examples, which lie along the first axis of each tensor; the gradients are
    taken of each, as `tf.vectorized_map` keeps no custom gradient that is differentiated from
    outside.
    """

    def over_examples(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: tf.vectorized_map(lambda each: function(*each), list(given))

    def pullback(cotangents: Sequence[Any]) -> list[Tensor]:
        seeds = [u for u in cotangents if u is not None]

        def pull(*given: Tensor) -> list[Tensor]:
            own, rest = given[: len(inputs)], iter(given[len(inputs) :])
            gradients = vjp(run, own)[1]([None if u is None else next(rest) for u in cotangents])
            return [
                tf.zeros_like(x) if g is None else g for g, x in zip(gradients, own, strict=True)
            ]

        return over_examples(pull)(*inputs, *seeds)

    return run_on_tensors_alone(over_examples, run, inputs, tf.is_tensor), pullback
