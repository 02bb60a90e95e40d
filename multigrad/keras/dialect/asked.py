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
def close_in(dtype: str) -> str:
    """The dtype in which integers of `dtype` are close within a tolerance: on JAX and NumPy.
    On torch and TensorFlow, "", they are close where they are equal.
    """
    one, none = (keras.ops.full((1,), n, dtype) for n in (1, 0))
    if not number(keras.ops.isclose(one, none, 0.0, 2.0)):
        return ""
    wide = "int64" if dtype == "int64" else "int32"
    more, less = (keras.ops.full((1,), n, wide) for n in (2**24 + 1, 2**24))
    return "float32" if number(keras.ops.isclose(more, less, 0.0, 0.0)) else "float64"


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
def limits_infinity() -> bool:
    """Whether what leaves NaN out takes inf for the largest number: on torch and TensorFlow."""
    return math.isfinite(number(keras.ops.nancumsum(keras.ops.full((1,), math.inf))))


@functools.cache
@at_once
def limits_moments() -> bool:
    """Whether `moments` of bfloat16 end where float16 does: on JAX and TensorFlow."""
    mean, _ = keras.ops.moments(keras.ops.full((1,), 1e6, "bfloat16"), (0,))
    return number(keras.ops.cast(mean, "float32")) < 1e5


@functools.cache
@at_once
def log_of_2() -> float:
    """The number that `log_cosh` takes off, which Keras rounds to its default dtype."""
    return number(keras.ops.log(2.0))


@functools.cache
@at_once
def log_of_2_in_sums() -> float:
    """The number that `logaddexp2` divides by: on TensorFlow one of float32, in float64 too."""
    nothing = keras.ops.zeros((1,), "float64")
    return math.log(2) / number(keras.ops.logaddexp2(nothing, nothing))


@functools.cache
@at_once
def multiplies_in_floats() -> bool:
    """Whether `matmul` rounds integers to floats: on TensorFlow."""
    large = keras.ops.full((1,), 2**24 + 1, "int32")
    return number(keras.ops.matmul(large, keras.ops.ones((1,), "int32"))) != 2**24 + 1


@functools.cache
@at_once
def stacks_vectors() -> bool:
    """Whether `vstack` takes vectors for rows; on TensorFlow it puts one after the other."""
    vectors = [keras.ops.ones((2,)), keras.ops.ones((2,))]
    return np.ndim(array(keras.ops.vstack(vectors))) == 2


@functools.cache
@at_once
def subtracts_ends() -> bool:
    """Whether `trapezoid` sums all and takes the ends off, so that inf gives NaN: on torch."""
    return math.isnan(number(keras.ops.trapezoid(keras.ops.full((2,), math.inf))))


@functools.cache
@at_once
def takes_lower_limit() -> bool:
    """Whether `clip` between limits that cross gives the lower one: on TensorFlow."""
    return number(keras.ops.clip(keras.ops.zeros(1), 2.0, 1.0)) == 2


@functools.cache
@at_once
def truncates_indices() -> bool:
    """Whether `one_hot` of 0.5 is that of 0: on torch and TensorFlow. Others find no class."""
    return number(keras.ops.one_hot(keras.ops.full((1,), 0.5), 1)) == 1


@functools.cache
@at_once
def crosses_in_float32() -> bool:
    """Whether `cross` computes float16 in float32: on torch, on a CPU."""
    large = keras.ops.full((3,), 300.0, "float16")
    return number(keras.ops.cross(large, large)) == 0
