"""Other modes of a custom gradient: forward mode, recomputation, vectorized maps, many at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.eager import context

from multigrad.core.ir.graph import Graph
from multigrad.engine.backend.features import run_on_tensors_alone

from .vjp import vjp

Tensor: TypeAlias = Any
Run: TypeAlias = Callable[[Sequence[Tensor]], list[Any]]


def many(
    graph: Graph, emit: Callable[[Graph], Callable[..., Any]], in_place: bool
) -> Callable[[Sequence[Tensor], Sequence[Any]], list[Tensor] | None] | None:
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


def jvp(
    run: Run, inputs: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> tuple[list[Any], list[Any]]:
    """Return the outputs of a function of tensors, and their tangents.

    Raises:
        NotImplementedError: TensorFlow gives no tangents, as for gradients without a gradient.
    """
    copies = [tf.identity(x) for x in inputs]
    pairs = [(x, t) for x, t in zip(copies, tangents, strict=True) if t is not None]
    primals, directions = (list(each) for each in zip(*pairs, strict=True))
    with tf.autodiff.ForwardAccumulator(primals, directions) as accumulator:
        outputs = run(copies)
    changes = [accumulator.jvp(y) if tf.is_tensor(y) else None for y in outputs]
    if all(tangent is None for tangent in changes):
        raise NotImplementedError(
            "tf.autodiff.ForwardAccumulator gives None: no output depends on the inputs, or what "
            "their gradients are made of has none"
        )
    return outputs, changes


def checkpointed(run: Run, inputs: Sequence[Tensor]) -> tuple[list[Any], Callable[..., Any]]:
    return vjp(lambda xs: run_on_tensors_alone(tf.recompute_grad, run, xs, tf.is_tensor), inputs)


def mapped(run: Run, inputs: Sequence[Tensor]) -> tuple[list[Any], Callable[..., Any]]:
    """Return the same as `vjp`, with the function mapped over the first axis of each tensor."""

    def over_examples(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *xs: tf.vectorized_map(lambda each: function(*each), list(xs))

    def pullback(cotangents: Sequence[Any]) -> list[Tensor]:
        # gradients are taken within the map: tf.vectorized_map drops custom gradients taken outside
        seeds = [u for u in cotangents if u is not None]

        def pull(*tensors: Tensor) -> list[Tensor]:
            arguments, cotangent_iterator = tensors[: len(inputs)], iter(tensors[len(inputs) :])
            gradients = vjp(run, arguments)[1](
                [None if u is None else next(cotangent_iterator) for u in cotangents]
            )
            return [
                tf.zeros_like(x) if g is None else g
                for g, x in zip(gradients, arguments, strict=True)
            ]

        return over_examples(pull)(*inputs, *seeds)

    return run_on_tensors_alone(over_examples, run, inputs, tf.is_tensor), pullback


def set_seed(seed: int | None) -> int | None:
    """Set TensorFlow's global seed and return the one before; ops draw from the start again."""
    seed_before = context.global_seed()
    tf.random.set_seed(seed)  # pyright: ignore[reportArgumentType]  # None: at random
    return seed_before
