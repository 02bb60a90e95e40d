"""Diagonals: taken from matrices, made into matrices; composed from the ops, with lengths fixed."""

from __future__ import annotations

from typing import Any

from ...trace.xp import all as xp
from .parts import rank, shape_of

Tensor = Any


def diagonal(x: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The diagonals of matrices in two axes, along a new last axis."""
    axes = rank(x)
    are_last = (axis1 % axes, axis2 % axes) == (axes - 2, axes - 1)
    matrix = x if are_last else xp.moveaxis(x, (axis1, axis2), (-2, -1))
    *lead, rows, columns = shape_of(matrix)
    start = offset if offset >= 0 else -offset * columns
    count = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    if not count:
        return xp.reshape(matrix[..., :0, 0], (*lead, 0))
    flat = xp.reshape(matrix, (*lead, rows * columns))
    stop = start + (count - 1) * (columns + 1) + 1
    return xp.getitem(flat, (..., slice(start, stop, columns + 1)))


def matrix_diagonal(x: Tensor, offset: int = 0) -> Tensor:
    """The diagonals of the matrices in the last two axes."""
    return diagonal(x, offset, -2, -1)


def trace(x: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The sums of the diagonals."""
    return xp.sum(diagonal(x, offset, axis1, axis2), -1)


def embedded(x: Tensor, offset: int = 0, axis1: int = -2, axis2: int = -1) -> Tensor:
    """Matrices with x on a diagonal and zero elsewhere, in two new axes."""
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
    """The matrix of a vector, or the diagonal of a matrix."""
    axes = rank(x)
    if axes not in (1, 2):
        raise TypeError(f"diag of a tensor of {axes} axes; it takes a vector or a matrix")
    return embedded(x, k) if axes == 1 else diagonal(x, k)


def diagflat(x: Tensor, k: int = 0) -> Tensor:
    """The matrix of all elements in a row."""
    return embedded(xp.reshape(x, -1), k)


def with_diagonal(x: Tensor, values: Tensor) -> Tensor:
    """Matrices with another main diagonal."""
    *lead, rows, columns = shape_of(x)
    n = min(rows, columns)
    square = embedded(xp.broadcast_to(values, (*lead, n)))
    filled = xp.pad(square, ((0, rows - n), (0, columns - n)))
    return xp.add(xp.add(xp.tril(x, -1), xp.triu(x, 1)), filled)


def kron(a: Tensor, b: Tensor) -> Tensor:
    """Kronecker's product: every element of a times the whole of b."""
    axes = max(rank(a), rank(b))
    left, right = ((1,) * (axes - rank(x)) + shape_of(x) for x in (a, b))
    spread = xp.reshape(a, tuple(n for length in left for n in (length, 1)))
    inner = xp.reshape(b, tuple(n for length in right for n in (1, length)))
    whole = tuple(n * m for n, m in zip(left, right, strict=True))
    return xp.reshape(xp.multiply(spread, inner), whole)
