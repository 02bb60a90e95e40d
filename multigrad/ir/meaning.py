"""What each elementwise op means, in NumPy: the definition that every backend is compared with.

16-bit values: elementwise arithmetic rounds after each op as the frameworks do; composite
functions compute in float32 and round once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any  # numpy.ndarray or a NumPy scalar


def is_16_bit(x: Array) -> bool:
    """Return whether x is float16 or bfloat16."""
    return x.dtype.itemsize == 2 and x.dtype.kind in "fV"


def widened(function: Callable[..., Array]) -> Callable[..., Array]:
    """Compute 16-bit floats in float32 and round once."""

    @functools.wraps(function)
    def call(x: Array, *args: Any, **attrs: Any) -> Array:
        x = np.asarray(x)
        if is_16_bit(x):
            return function(x.astype(np.float32), *args, **attrs).astype(x.dtype)
        return function(x, *args, **attrs)

    return call


def sign(x: Array) -> Array:
    """-1, 0 or 1; NaN stays NaN."""
    return np.sign(x)


def rsqrt(x: Array) -> Array:
    return x.dtype.type(1) / np.sqrt(x)


def reciprocal(x: Array) -> Array:
    return x.dtype.type(1) / x


@widened
def sigmoid(x: Array) -> Array:
    # exp of a non-positive number only, so nothing overflows
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


@widened
def tanh(x: Array) -> Array:
    return np.tanh(x)


@widened
def erf(x: Array) -> Array:
    from scipy.special import erf as function

    return function(x)


def clip(x: Array, min: Array, max: Array) -> Array:
    """NaN in x, min or max gives NaN; where min > max the result is max."""
    return np.minimum(np.maximum(x, min), max)


def cast(x: Array, *, dtype: Any) -> Array:
    return np.asarray(x).astype(as_numpy_dtype(dtype))


def as_numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the NumPy dtype, bfloat16 included."""
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def full_like(x: Array, value: Array, *, dtype: Any = None) -> Array:
    return np.full_like(x, value, dtype=x.dtype if dtype is None else as_numpy_dtype(dtype))


def relu(x: Array) -> Array:
    return np.maximum(x, x.dtype.type(0))


def relu6(x: Array) -> Array:
    return np.minimum(np.maximum(x, x.dtype.type(0)), x.dtype.type(6))


@widened
def leaky_relu(x: Array, *, slope: float) -> Array:
    return np.where(x >= 0, x, x * x.dtype.type(slope))


@widened
def elu(x: Array, *, alpha: float) -> Array:
    return np.where(x > 0, x, x.dtype.type(alpha) * np.expm1(np.minimum(x, 0)))


@widened
def gelu(x: Array, *, approximate: bool) -> Array:
    one = x.dtype.type
    if approximate:
        inner = one(np.sqrt(2 / np.pi)) * (x + one(0.044715) * x * x * x)
        return x * (one(0.5) * (one(1) + np.tanh(inner)))
    return x * (one(0.5) * erfc(-x * one(np.sqrt(0.5))))


def erfc(x: Array) -> Array:
    from scipy.special import erfc as function

    return function(x)


@widened
def silu(x: Array) -> Array:
    return x * sigmoid(x)


@widened
def softplus(x: Array) -> Array:
    return np.maximum(x, x.dtype.type(0)) + np.log1p(np.exp(-np.abs(x)))


def heaviside(x: Array) -> Array:
    """1 above zero, else 0; NaN gives 0, as `(x > 0)` does."""
    return (x > x.dtype.type(0)).astype(x.dtype)


def stop_gradient(x: Array) -> Array:
    return x
