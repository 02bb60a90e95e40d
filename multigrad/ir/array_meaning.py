"""What each op over whole arrays means, in NumPy: reductions, shapes, random draws.

16-bit reductions accumulate in float32 and round once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import random
from .meaning import widened

Array = Any  # numpy.ndarray or a NumPy scalar
Axis = int | tuple[int, ...] | None


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


def fold_in(key: Any, *, n: int) -> Any:
    return random.fold_in(key, n)


def uniform_like(key: Any, x: Array) -> Array:
    return random.uniform_like(key, np.asarray(x))


def normal_like(key: Any, x: Array) -> Array:
    return random.normal_like(key, np.asarray(x))
