"""What each op over whole arrays means, in NumPy: reductions, shapes, random draws.

16-bit reductions accumulate in float32 and round once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import random
from ..errors import GradientError
from .activation_meaning import sigmoid
from .meaning import is_16_bit, widened

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
def prod(x: Array, *, axis: Axis, keepdims: bool) -> Array:
    return np.prod(x, axis=over(x, axis), keepdims=keepdims)


@widened
def count_nonzero(x: Array, *, axis: Axis, keepdims: bool) -> Array:
    return np.sum(x != 0, axis=over(x, axis), keepdims=keepdims).astype(x.dtype)


@widened
def norm(x: Array, *, axis: Axis, keepdims: bool, ord: float) -> Array:
    """The root of the sum of powers, which overflow as every framework's do."""
    axis, size = over(x, axis), np.abs(x)
    if ord == np.inf:
        return np.max(size, axis=axis, keepdims=keepdims, initial=0)
    if ord == 1:
        return np.sum(size, axis=axis, keepdims=keepdims)
    if ord == 2:
        return np.sqrt(np.sum(np.square(x), axis=axis, keepdims=keepdims))
    number = x.dtype.type
    return np.sum(size ** number(ord), axis=axis, keepdims=keepdims) ** number(1 / ord)


@widened
def logsumexp(x: Array, *, axis: Axis, keepdims: bool) -> Array:
    """Shifted by the largest, so that nothing overflows; -inf where there is nothing."""
    axis = over(x, axis)
    largest = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(largest), largest, x.dtype.type(0))
    total = np.log(np.sum(np.exp(x - shift), axis=axis, keepdims=True)) + shift
    return total if keepdims else np.squeeze(total, axis=axis)


@widened
def softmax(x: Array, *, axis: Axis) -> Array:
    axis = over(x, axis)
    powers = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    return powers / np.sum(powers, axis=axis, keepdims=True)


@widened
def log_softmax(x: Array, *, axis: Axis) -> Array:
    axis = over(x, axis)
    shifted = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


@widened
def glu(x: Array, *, axis: int) -> Array:
    """The first half times the sigmoid of the second."""
    if x.shape[axis] % 2:
        raise ValueError(f"axis {axis} of length {x.shape[axis]} has no halves")
    first, second = np.split(x, 2, axis=axis)
    return first * sigmoid(second)


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
    if lead < 0 or any(n not in (1, m) for n, m in zip(shape, x.shape[lead:], strict=True)):
        raise GradientError(
            f"a gradient of shape {x.shape} cannot be summed to its argument's shape {shape}"
        )
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


def array(like: Array, *, dtype: Any, value: Any) -> Array:
    return value.as_numpy(dtype)


def uniform_wide(key: Any, x: Array) -> Array:
    """Uniforms in float32 for 16-bit dtypes, so that a function of them rounds once."""
    return random.uniform(key, np.shape(x), np.float32 if is_16_bit(x) else x.dtype)


def bernoulli_like(key: Any, x: Array, p: Any) -> Array:
    return (uniform_like(key, x) < np.asarray(p).astype(x.dtype)).astype(x.dtype)


def rademacher_like(key: Any, x: Array) -> Array:
    half, one = x.dtype.type(0.5), x.dtype.type(1)
    return np.where(uniform_like(key, x) < half, one, -one)


def exponential_like(key: Any, x: Array) -> Array:
    return (-np.log1p(-uniform_wide(key, x))).astype(x.dtype)


def gumbel_like(key: Any, x: Array) -> Array:
    uniform = uniform_wide(key, x)
    positive = np.maximum(uniform, np.finfo(uniform.dtype).tiny)
    return (-np.log(-np.log(positive))).astype(x.dtype)


# --- products ------------------------------------------------------------------------------------
def wide(x: Array) -> Array:
    return x.astype(np.float32) if is_16_bit(x) else x


def matmul(a: Array, b: Array) -> Array:
    """The product of matrices in the last two axes; a vector is a row at the left, a column at the right."""
    return np.matmul(wide(a), wide(b)).astype(a.dtype)


def matmul_left(cotangent: Array, b: Array, like: Array) -> Array:
    """The cotangent of a, where `like` is shaped as a."""
    rows = as_matrix(wide(cotangent), like, b)
    columns = wide(b) if b.ndim > 1 else wide(b)[:, None]
    result = rows @ np.swapaxes(columns, -1, -2)
    result = result if like.ndim > 1 else result[..., 0, :]
    return sum_to(result, like).astype(cotangent.dtype)


def matmul_right(a: Array, cotangent: Array, like: Array) -> Array:
    """The cotangent of b, where `like` is shaped as b."""
    columns = as_matrix(wide(cotangent), a, like)
    rows = wide(a) if a.ndim > 1 else wide(a)[None]
    result = np.swapaxes(rows, -1, -2) @ columns
    result = result if like.ndim > 1 else result[..., 0]
    return sum_to(result, like).astype(cotangent.dtype)


def as_matrix(product: Array, a: Array, b: Array) -> Array:
    """Give the product of a and b back the axes that a vector among them took away."""
    product = product[..., None] if b.ndim == 1 else product
    return product[..., None, :] if a.ndim == 1 else product


def einsum(*arrays: Array, subscripts: str) -> Array:
    return np.einsum(subscripts, *map(wide, arrays), optimize=True).astype(arrays[0].dtype)
