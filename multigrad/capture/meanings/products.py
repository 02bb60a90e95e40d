"""Products under the names that libraries give them, composed from `matmul` and `einsum`."""

from __future__ import annotations

import functools
import string
from typing import Any

from ...trace.xp import all as xp
from .diagonals import diagonal
from .parts import length, rank

Tensor = Any


def scaled(x: Any, factor: Any) -> Any:
    return x if type(factor) in (int, float) and factor == 1 else xp.multiply(factor, x)


def added(x: Tensor, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    """beta x + alpha product; without x where beta is 0, even where x is NaN."""
    if type(beta) in (int, float) and beta == 0:
        return scaled(product, alpha)
    return xp.add(scaled(x, beta), scaled(product, alpha))


def inner(a: Tensor, b: Tensor) -> Tensor:
    """The sums of products over the last axes."""
    if not (rank(a) and rank(b)):
        return xp.multiply(a, b)
    if rank(b) < 3:
        return xp.matmul(a, b if rank(b) == 1 else xp.matrix_transpose(b))
    return tensordot(a, b, ((-1,), (-1,)))


def tensordot(a: Tensor, b: Tensor, axes: Any = 2) -> Tensor:
    """The sum of products over axes: the last of a and first of b, or those given of each."""
    if not isinstance(axes, list | tuple):
        return xp.tensordot(a, b, axes)
    over_a, over_b = ([i] if isinstance(i, int) else [*i] for i in axes)
    letters = iter(string.ascii_letters)
    left = [next(letters) for _ in range(rank(a))]
    right = [next(letters) for _ in range(rank(b))]
    if len(over_a) != len(over_b):
        raise TypeError(f"tensordot over {len(over_a)} axes of one and {len(over_b)} of the other")
    for i, j in zip(over_a, over_b, strict=True):
        right[j] = left[i]
    shared = {left[i] for i in over_a}
    kept = "".join(letter for letter in (*left, *right) if letter not in shared)
    return xp.einsum(f"{''.join(left)},{''.join(right)}->{kept}", a, b)


def multi_dot(arrays: Any) -> Tensor:
    return functools.reduce(xp.matmul, arrays)


def cross(a: Tensor, b: Tensor, axis: int = -1) -> Tensor:
    """The product of vectors of three elements along an axis."""
    for x in (a, b):
        if length(x, axis) != 3:
            raise TypeError(f"cross along an axis of length {length(x, axis)}; 3 is known")
    later = xp.multiply(xp.roll(a, -1, axis), xp.roll(b, 1, axis))
    return xp.subtract(later, xp.multiply(xp.roll(a, 1, axis), xp.roll(b, -1, axis)))


def covariance(x: Tensor, correction: float = 1) -> Tensor:
    """Of variables in rows, observations in columns."""
    rows = xp.expand_dims(x, 0) if rank(x) < 2 else x
    centered = xp.subtract(rows, xp.mean(rows, 1, keepdims=True))
    product = xp.matmul(centered, xp.matrix_transpose(centered))
    result = xp.divide(product, length(rows, 1) - correction)
    return result if rank(x) > 1 else xp.reshape(result, ())


def correlation(x: Tensor) -> Tensor:
    """The covariance over both standard deviations, within -1 and 1; of one variable, 1."""
    product = covariance(x)
    if rank(x) < 2:
        return xp.divide(product, product)
    spread = xp.sqrt(diagonal(product))
    scaled = xp.divide(xp.divide(product, xp.expand_dims(spread, 1)), spread)
    return xp.clip(scaled, -1.0, 1.0)


def matvec(a: Tensor, b: Tensor) -> Tensor:
    """Matrices times vectors in the last axis."""
    return xp.squeeze(xp.matmul(a, xp.expand_dims(b, -1)), -1)


def vecmat(a: Tensor, b: Tensor) -> Tensor:
    """Vectors in the last axis times matrices."""
    return xp.squeeze(xp.matmul(xp.expand_dims(a, -2), b), -2)
