"""What each op means, in NumPy: the definition that every backend is compared with.

16-bit values: elementwise arithmetic rounds after each op as the frameworks do; reductions and composite
functions compute in float32 and round once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import random

Array = Any  # numpy.ndarray or a NumPy scalar
Axis = int | tuple[int, ...] | None


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


@widened
def sum_(x: Array, *, axis: Axis, keepdims: bool) -> Array:
    return np.sum(x, axis=over(x, axis), keepdims=keepdims)


@widened
def mean(x: Array, *, axis: Axis, keepdims: bool) -> Array:
    return np.sum(x, axis=over(x, axis), keepdims=keepdims) / x.dtype.type(count(x, axis))


def max_(x: Array, *, axis: Axis, keepdims: bool) -> Array:
    return np.max(x, axis=over(x, axis), keepdims=keepdims)


def min_(x: Array, *, axis: Axis, keepdims: bool) -> Array:
    return np.min(x, axis=over(x, axis), keepdims=keepdims)


def any_(x: Array, *, axis: Axis, keepdims: bool) -> Array:
    return np.any(x, axis=over(x, axis), keepdims=keepdims)


def all_(x: Array, *, axis: Axis, keepdims: bool) -> Array:
    return np.all(x, axis=over(x, axis), keepdims=keepdims)


@widened
def norm(x: Array, *, axis: Axis, keepdims: bool) -> Array:
    """The root of the sum of squares, which overflow as every framework's do."""
    return np.sqrt(np.sum(np.square(x), axis=over(x, axis), keepdims=keepdims))


@widened
def var(x: Array, *, axis: Axis, keepdims: bool, correction: float) -> Array:
    centered = x - np.mean(x, axis=over(x, axis), keepdims=True)
    total = np.sum(np.square(centered), axis=over(x, axis), keepdims=keepdims)
    return total / x.dtype.type(max(count(x, axis) - correction, 0))


@widened
def std(x: Array, *, axis: Axis, keepdims: bool, correction: float) -> Array:
    return np.sqrt(var(x, axis=axis, keepdims=keepdims, correction=correction))


def count(x: Array, axis: Axis) -> int:
    """Return how many elements each result of a reduction combines."""
    axis = over(x, axis)
    if axis is None:
        return x.size
    axes = axis if isinstance(axis, tuple) else (axis,)
    return int(np.prod([x.shape[i] for i in axes], dtype=int))


def over(x: Array, axis: Axis) -> Axis:
    """Return the axes to reduce over: none of a scalar, whichever are asked for, as in torch."""
    return () if x.ndim == 0 else axis


@widened
def sum_to(x: Array, like: Array) -> Array:
    """Sum x over the axes along which `like` was broadcast."""
    shape = np.shape(like)
    lead = x.ndim - len(shape)
    axes = (*range(lead), *(lead + i for i, n in enumerate(shape) if n == 1 != x.shape[lead + i]))
    return np.sum(x, axis=axes, keepdims=True).reshape(shape) if axes else x


def broadcast_to(x: Array, like: Array) -> Array:
    return np.broadcast_to(x, np.shape(like))


def expand_dims(x: Array, *, axis: int) -> Array:
    return np.expand_dims(x, axis)


def dim(x: Array, *, axis: int) -> int:
    return np.shape(x)[axis]


def size(x: Array) -> int:
    return int(np.size(x))


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


def fold_in(key: Any, *, n: int) -> Any:
    return random.fold_in(key, n)


def uniform_like(key: Any, x: Array) -> Array:
    return random.uniform_like(key, np.asarray(x))


def normal_like(key: Any, x: Array) -> Array:
    return random.normal_like(key, np.asarray(x))
