"""Keras's dialect, the cross-entropies of `keras.ops`; see `table.py`."""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from multigrad.capture.meanings.networks import losses
from multigrad.capture.values.elementwise import is_whole
from multigrad.graph import ops
from multigrad.trace.trace import Value
from multigrad.trace.xp import all as xp

from .asked import limits_logarithms, remembers_logits

Tensor = Any
Handler = Callable[..., Any]


def binary_crossentropy(target: Any, output: Tensor, from_logits: bool = False) -> Tensor:
    need_floats(output)
    output, from_logits = behind(output, from_logits)
    if from_logits:
        positive, negative = xp.log_sigmoid(output), xp.log_sigmoid(xp.negative(output))
    else:
        p = within(output)
        if limits_logarithms():
            return losses.binary_cross_entropy(p, target)
        positive, negative = xp.log(p), xp.log(xp.subtract(1.0, p))
    rest = xp.multiply(xp.subtract(1.0, target), negative)
    return xp.negative(xp.add(xp.multiply(target, positive), rest))


def categorical_crossentropy(
    target: Any, output: Tensor, from_logits: bool = False, axis: int = -1
) -> Tensor:
    need_floats(output)
    output, from_logits = behind(output, from_logits)
    if from_logits:
        return losses.softmax_cross_entropy(output, target, axis)
    p = xp.divide(output, xp.sum(output, axis, keepdims=True))
    return xp.negative(xp.sum(xp.multiply(target, xp.log(within(p))), axis))


def behind(output: Any, from_logits: bool) -> tuple[Any, bool]:
    """Return the logits that probabilities were just made of, where this Keras goes back to them
    (`_get_logits` of its TensorFlow backend): else probabilities of 0 and 1 would hide them.
    """
    made = output.node if isinstance(output, Value) else None
    if made is not None and made.op in (ops.SIGMOID, ops.SOFTMAX) and remembers_logits():
        return output.trace.value(made.operands[0]), True
    return output, from_logits


def within(p: Tensor) -> Tensor:
    """Probabilities, kept away from 0 and 1."""
    epsilon = keras.config.epsilon()
    return xp.clip(p, epsilon, 1.0 - epsilon)


def need_floats(given: Any) -> None:
    """Raise TypeError for predictions of integers or bools."""
    if is_whole(given):
        raise TypeError("predictions of integers, in which Keras computes: cast to a float first")


OPS: dict[str, Handler] = {
    "binary_crossentropy": binary_crossentropy,
    "categorical_crossentropy": categorical_crossentropy,
}
