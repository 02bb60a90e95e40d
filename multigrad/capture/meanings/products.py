"""Products under the names that libraries give them, and diagonals of matrices;
lengths are fixed.
"""

from __future__ import annotations

import functools
import string
from typing import Any

from ...trace.xp import all as xp
from .composites import scaled
from .parts import length, rank, shape_of

Tensor = Any


def diagonal(x: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Return the diagonals of matrices in two axes, along a new last axis."""
    axes = rank(x)
    are_last = (axis1 % axes, axis2 % axes) == (axes - 2, axes - 1)
    matrix = x if are_last else xp.moveaxis(x, (axis1, axis2), (-2, -1))
    *lead, rows, columns = shape_of(matrix)
    # In a flattened matrix the diagonal is every (columns + 1)-th element.
    start = offset if offset >= 0 else -offset * columns
    count = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    if not count:
        return xp.reshape(matrix[..., :0, 0], (*lead, 0))
    flat = xp.reshape(matrix, (*lead, rows * columns))
    stop = start + (count - 1) * (columns + 1) + 1
    return xp.getitem(flat, (..., slice(start, stop, columns + 1)))


def matrix_diagonal(x: Tensor, offset: int = 0) -> Tensor:
    return diagonal(x, offset, -2, -1)


def trace(x: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    return xp.sum(diagonal(x, offset, axis1, axis2), -1)


def embedded(x: Tensor, offset: int = 0, axis1: int = -2, axis2: int = -1) -> Tensor:
    """Return matrices with x on a diagonal and zero elsewhere, in two new axes."""
    *lead, n = shape_of(x)
    # Each element is followed by n zeros, and n + 1 is one more than a row.
    spaced = xp.pad(xp.expand_dims(x, -1), ((0, 0), (0, n)))
    flat = xp.reshape(spaced, (*lead, n * (n + 1)))
    matrix = xp.reshape(xp.getitem(flat, (..., slice(0, n * n))), (*lead, n, n))
    if offset:
        right, below = max(offset, 0), max(-offset, 0)
        matrix = xp.pad(matrix, ((below, right), (right, below)))
    if (axis1, axis2) in ((-2, -1), (rank(matrix) - 2, rank(matrix) - 1)):
        return matrix
    return xp.moveaxis(matrix, (-2, -1), (axis1, axis2))


def diag(x: Tensor, k: int = 0) -> Tensor:
    """Return the matrix of a vector, or the diagonal of a matrix."""
    axes = rank(x)
    if axes not in (1, 2):
        raise TypeError(f"diag of a tensor of {axes} axes; it takes a vector or a matrix")
    return embedded(x, k) if axes == 1 else diagonal(x, k)


def diagflat(x: Tensor, k: int = 0) -> Tensor:
    return embedded(xp.reshape(x, -1), k)


def with_diagonal(x: Tensor, values: Tensor) -> Tensor:
    """Return matrices with another main diagonal."""
    *lead, rows, columns = shape_of(x)
    n = min(rows, columns)
    square = embedded(xp.broadcast_to(values, (*lead, n)))
    filled = xp.pad(square, ((0, rows - n), (0, columns - n)))
    return xp.add(xp.add(xp.tril(x, -1), xp.triu(x, 1)), filled)


def kron(a: Tensor, b: Tensor) -> Tensor:
    """Return the Kronecker product: every element of a times the whole of b."""
    axes = max(rank(a), rank(b))
    left, right = ((1,) * (axes - rank(x)) + shape_of(x) for x in (a, b))
    spread = xp.reshape(a, tuple(n for length in left for n in (length, 1)))
    inner = xp.reshape(b, tuple(n for length in right for n in (1, length)))
    whole = tuple(n * m for n, m in zip(left, right, strict=True))
    return xp.reshape(xp.multiply(spread, inner), whole)


def added(x: Tensor, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    """Return beta x + alpha product; beta = 0 drops x even where it is NaN."""
    if type(beta) in (int, float) and beta == 0:
        return scaled(product, alpha)
    return xp.add(scaled(x, beta), scaled(product, alpha))


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Return the sums of products over the last axes."""
    if not (rank(a) and rank(b)):
        return xp.multiply(a, b)
    if rank(b) < 3:
        return xp.matmul(a, b if rank(b) == 1 else xp.matrix_transpose(b))
    return tensordot(a, b, ((-1,), (-1,)))


def tensordot(a: Tensor, b: Tensor, axes: Any = 2) -> Tensor:
    """Return the sum of products over the last of a and first of b, or over the named axes."""
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
    """Return the cross product of vectors of three elements along an axis."""
    for x in (a, b):
        if length(x, axis) != 3:
            raise TypeError(f"cross along an axis of length {length(x, axis)}; 3 is known")
    later = xp.multiply(xp.roll(a, -1, axis), xp.roll(b, 1, axis))
    return xp.subtract(later, xp.multiply(xp.roll(a, 1, axis), xp.roll(b, -1, axis)))


def covariance(x: Tensor, correction: float = 1) -> Tensor:
    """Return the covariance of variables in rows, observations in columns."""
    rows = xp.expand_dims(x, 0) if rank(x) < 2 else x
    centered = xp.subtract(rows, xp.mean(rows, 1, keepdims=True))
    product = xp.matmul(centered, xp.matrix_transpose(centered))
    result = xp.divide(product, length(rows, 1) - correction)
    return result if rank(x) > 1 else xp.reshape(result, ())


def correlation(x: Tensor) -> Tensor:
    """Return the correlation, clipped to [-1, 1] against rounding; that of one variable is 1."""
    product = covariance(x)
    if rank(x) < 2:
        return xp.divide(product, product)
    spread = xp.sqrt(diagonal(product))
    both = xp.divide(xp.divide(product, xp.expand_dims(spread, 1)), spread)
    return xp.clip(both, -1.0, 1.0)


def matvec(a: Tensor, b: Tensor) -> Tensor:
    return xp.squeeze(xp.matmul(a, xp.expand_dims(b, -1)), -1)


def vecmat(a: Tensor, b: Tensor) -> Tensor:
    return xp.squeeze(xp.matmul(xp.expand_dims(a, -2), b), -2)
