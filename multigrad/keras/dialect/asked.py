"""What one operation of Keras gives otherwise on each of its backends, asked of the one in use.

Each is asked once, on numbers on which the backends part.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np

from multigrad.capture.code.table import find_dialect


def compute_at_once() -> AbstractContextManager[Any]:
    """A context in which Keras's backend computes at once, though it may be compiling."""
    own = find_dialect(keras.config.backend())
    return nullcontext() if own is None or own.at_once is None else own.at_once()


def at_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes at once."""

    @functools.wraps(function)
    def computed(*args: Any, **kwargs: Any) -> Any:
        with compute_at_once():
            return function(*args, **kwargs)

    return computed


def array(x: Any) -> Any:
    return keras.ops.convert_to_numpy(x)


def number(x: Any) -> float:
    return float(np.ravel(array(x))[0])


@functools.cache
@at_once
def remembers_logits() -> bool:
    """Whether probabilities know the logits that they were made of: on TensorFlow."""
    return hasattr(keras.ops.sigmoid(keras.ops.zeros(1)), "_keras_logits")


@functools.cache
@at_once
def floors_quotients() -> bool:
    """Whether `floor_divide` of inf is inf, the floor of a quotient: on TensorFlow."""
    return math.isinf(number(keras.ops.floor_divide(keras.ops.full((1,), math.inf), 2.0)))


@functools.cache
@at_once
def limits_logarithms() -> bool:
    """Whether the cross-entropy of 1 and 1 is 0 in 16 bits, where 1 - epsilon is 1: on torch.
    Others multiply 0 by log(0).
    """
    one = keras.ops.ones(1, "float16")
    return math.isfinite(number(keras.ops.binary_crossentropy(one, one)))


@functools.cache
@at_once
def takes_lower_limit() -> bool:
    """Whether `clip` between limits that cross gives the lower one: on TensorFlow."""
    return number(keras.ops.clip(keras.ops.zeros(1), 2.0, 1.0)) == 2
