"""The other ways in which TensorFlow runs a custom gradient: forward mode, and recomputation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from multigrad.backend.finding.values import run_on_tensors_alone

from .vjp import vjp

Tensor: TypeAlias = Any
Run: TypeAlias = Callable[[Sequence[Tensor]], list[Any]]
# Why there is none of the others.
LACKS = {
    "autocast": "TensorFlow has no autocast: layers of Keras choose their dtypes",
    "kept": "a backward is a closure, which holds what it reads",
}


def jvp(
    run: Run, inputs: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> tuple[list[Any], list[Any]]:
    """Return what a function of tensors gives, and its tangents.

    Raises:
        NotImplementedError: TensorFlow knows none, of whose gradients there are no gradients.
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
