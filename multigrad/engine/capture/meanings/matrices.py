"""Linear algebra under the names that libraries give it, composed from the ops: factors, solutions,
norms, products, diagonals.

The triangle that is read, the side of the unknowns and the axes of vectors differ between
libraries:
a dialect passes them. Singular vectors beyond the singular values, and columns of q beyond those of
the matrix, are not unique and have no derivative: a library's "full" form with any is refused.
"""

from __future__ import annotations

import functools
import math
import string
from typing import Any

import numpy as np

from ....core.ir.op import INT32, T
from ....core.trace.xp import all as xp
from ...trace.xp import transposes
from ..symbols import in_dtype
from .composites import scaled
from .parts import length, rank, shape_of

Tensor = Any


def turned(x: Tensor, transposed: bool = True) -> Tensor:
    return xp.matrix_transpose(x) if transposed else x


def cholesky(x: Tensor, upper: bool = False) -> Tensor:
    """Return the lower factor, read from the lower triangle, or the upper one from the upper."""
    return turned(xp.cholesky(turned(x, upper)), upper)


def cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    half = xp.solve_triangular(factor, b, lower=not upper, transposed=upper)
    return xp.solve_triangular(factor, half, lower=not upper, transposed=not upper)


def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    # The right side is an identity in the factor's dtype.
    identity = np.eye(length(factor, -1), dtype=bool)
    return cholesky_solve(xp.where(identity, 1.0, xp.zeros_like(factor)), factor, upper)


def solve(a: Tensor, b: Tensor, vectors: bool = False) -> Tensor:
    """Solve a x = b; b holds matrices or vectors in its last axes."""
    return xp.squeeze(xp.solve(a, xp.expand_dims(b, -1)), -1) if vectors else xp.solve(a, b)


def solve_at_right(a: Tensor, b: Tensor) -> Tensor:
    return turned(xp.solve(turned(a), turned(b)))


def solve_triangular(a: Tensor, b: Tensor, left: bool, **options: bool) -> Tensor:
    """Solve op(a) x = b, or x op(a) = b if a is not at the left; `xp.solve_triangular` has the
    options.
    """
    if left:
        return xp.solve_triangular(a, b, **options)
    options["transposed"] = not options.get("transposed", False)
    return turned(xp.solve_triangular(a, turned(b), **options))


TRANSPOSED = {0: False, 1: True, 2: True, "N": False, "T": True, "C": True}


def is_transposed(trans: Any) -> bool:
    if trans not in TRANSPOSED:
        raise TypeError(f"trans={trans!r}; {', '.join(map(repr, TRANSPOSED))} are known")
    return TRANSPOSED[trans]


def has_vectors(a: Tensor, b: Tensor) -> bool:
    return rank(b) == rank(a) - 1


def scipy_solve(a: Tensor, b: Tensor, lower: bool, assume_a: Any, transposed: bool) -> Tensor:
    """Solve as SciPy does: `assume_a` decides which part of a is read."""
    if assume_a in ("pos", "positive definite"):
        return cholesky_solve(b, cholesky(a, not lower), not lower)
    if assume_a not in (None, "gen", "general"):
        raise TypeError(f"assume_a={assume_a!r}; 'gen' and 'pos' are known")
    return xp.solve(turned(a, transposed), b)


def pinv(x: Tensor, rtol: Any, epsilons: float = 1.0) -> Tensor:
    """Return the pseudo-inverse; without a cutoff it is `epsilons` eps per row."""
    if rtol is None:
        return xp.pinv(x, 0.0, epsilons)
    return xp.pinv(x, float(rtol), 0.0)


def lu_factor(x: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
    """Return the packed factors, and pivots in int32 that count from `first`."""
    packed, pivots = xp.lu(x)
    return packed, xp.cast(pivots + first if first else pivots, INT32)


def lu_permuted(x: Tensor) -> tuple[Tensor, Tensor]:
    packed, pivots = xp.lu(x)
    return packed, xp.cast(transposes.lu_permutation(pivots, x), INT32)


def unpacked(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Return l and u, with as many columns and rows as the smaller length."""
    rows, columns = length(packed, -2), length(packed, -1)
    count = min(rows, columns)
    lower = xp.tril(xp.getitem(packed, (..., slice(None), slice(0, count))), -1)
    upper = xp.triu(xp.getitem(packed, (..., slice(0, count), slice(None))))
    return xp.where(np.eye(rows, count, dtype=bool), 1.0, lower), upper


def permutation_matrix(places: Tensor) -> Tensor:
    """Return bools: True at the row of x that each row of l u equals."""
    return xp.matrix_transpose(xp.one_hot(places, length(places, -1)))


def lu(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return p, l and u with x = p l u."""
    packed, pivots = xp.lu(x)
    matrix = permutation_matrix(transposes.lu_permutation(pivots, x))
    return (xp.cast(matrix, T), *unpacked(packed))


def in_rows(b: Tensor, places: Tensor, packed: Tensor) -> Tensor:
    """Return the rows of right sides at places, for each matrix."""
    batch = np.broadcast_shapes(shape_of(b)[:-2], shape_of(packed)[:-2])
    shape = (*batch, *shape_of(b)[-2:])
    places_of_elements = xp.broadcast_to(xp.expand_dims(places, -1), shape)
    return transposes.take_along(xp.broadcast_to(b, shape), places_of_elements, axis=-2)


def lu_solve(packed: Tensor, places: Tensor, b: Tensor, transposed: bool = False) -> Tensor:
    """Solve a x = b, or with the transpose of a, from the factors and the permutation of a."""
    if not transposed:
        rows = in_rows(b, places, packed)
        half = xp.solve_triangular(packed, rows, lower=True, unit_diagonal=True)
        return xp.solve_triangular(packed, half)
    # The transpose: the factors in reverse order, then the inverse permutation.
    half = xp.solve_triangular(packed, b, transposed=True)
    rows = xp.solve_triangular(packed, half, lower=True, transposed=True, unit_diagonal=True)
    return in_rows(rows, xp.argsort(places, -1), packed)


def lu_solve_of(packed: Tensor, pivots: Tensor, b: Tensor, transposed: bool = False) -> Tensor:
    # As `lu_solve`, by pivots that count from 0; b may be a vector.
    columns = xp.expand_dims(b, -1) if rank(b) == 1 else b
    result = lu_solve(packed, transposes.lu_permutation(pivots, packed), columns, transposed)
    return xp.squeeze(result, -1) if rank(b) == 1 else result


def svd(x: Tensor, full: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Return u, the singular values, and v transposed."""
    if full and length(x, -2) != length(x, -1):
        raise TypeError("singular vectors beyond the singular values; use full_matrices=False")
    return xp.svd(x)


def svdvals(x: Tensor) -> Tensor:
    return xp.svd(x)[1]


def is_upper(triangle: Any) -> bool:
    if triangle not in ("L", "U", "l", "u"):
        raise TypeError(f"UPLO={triangle!r}; 'L' and 'U' are known")
    return triangle in ("U", "u")


def eigh(x: Tensor, upper: bool = False) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues and eigenvectors; one triangle is read."""
    return xp.eigh(x, lower=not upper)


def eigvalsh(x: Tensor, upper: bool = False) -> Tensor:
    return eigh(x, upper)[0]


def qr(x: Tensor, full: bool = False) -> tuple[Tensor, Tensor]:
    if full and length(x, -2) > length(x, -1):
        raise TypeError("columns of q beyond those of the matrix; use the reduced mode")
    return xp.qr(x)


def numpy_qr(x: Tensor, mode: Any) -> Any:
    """Return q and r, or r alone, as NumPy's `mode` says."""
    if mode not in ("reduced", "complete", "r"):
        raise TypeError(f"qr with mode={mode!r}; 'reduced' and 'r' are known")
    pair = qr(x, mode == "complete")
    return pair[1] if mode == "r" else pair


BY_SUMS = {1: -2, math.inf: -1}  # order of a matrix norm: the axis along which it sums
BY_VALUES = {2: xp.max, -2: xp.min, "nuc": xp.sum}  # order: the reduction of singular values


def norm(
    x: Tensor, ord: Any = None, axis: Any = None, keepdims: bool = False, dtype: Any = None
) -> Tensor:
    # NumPy's: without an order, all elements are one vector; two axes are those of matrices.
    if axis is not None and not isinstance(axis, int):
        axis = tuple(axis)
    if ord is None:
        return xp.norm(in_dtype(x, dtype), axis, keepdims)
    if axis is None:
        axis = tuple(range(rank(x)))
    if isinstance(axis, int) or len(axis) == 1:
        return vector_norm(x, ord, axis, keepdims, dtype)
    if len(axis) != 2:
        raise TypeError(f"a norm of order {ord!r} over {len(axis)} axes; it takes one or two")
    return matrix_norm(x, ord, axis, keepdims, dtype)


def vector_norm(
    x: Tensor, ord: Any = 2, axis: Any = None, keepdims: bool = False, dtype: Any = None
) -> Tensor:
    """Return a norm of any order over the given axes, or over all."""
    axis = tuple(axis) if isinstance(axis, list) else axis
    if not isinstance(ord, int | float):
        raise TypeError(f"a norm of order {ord!r} of vectors; a number is known")
    x = in_dtype(x, dtype)
    if ord > 0:
        return xp.norm(x, axis, keepdims, ord)
    sizes = xp.abs(x)
    if ord == 0:
        return xp.sum(xp.where(xp.equal(sizes, 0), 0.0, 1.0), axis, keepdims)
    if ord == -math.inf:
        return xp.min(sizes, axis, keepdims)
    return xp.pow(xp.sum(xp.pow(sizes, ord), axis, keepdims), 1.0 / ord)


def matrix_norm(
    x: Tensor, ord: Any, axes: Any = (-2, -1), keepdims: bool = False, dtype: Any = None
) -> Tensor:
    """Return the Frobenius norm, one of the singular values, or the largest (smallest) sum."""
    x, axes = in_dtype(x, dtype), tuple(axes)
    if ord == "fro":
        return xp.norm(x, axes, keepdims)
    if ord in BY_VALUES:
        axes = tuple(axis % rank(x) for axis in axes)
        result = BY_VALUES[ord](svdvals(xp.moveaxis(x, axes, (-2, -1))), -1)
        # In ascending order, so that each insertion keeps the later places valid.
        for axis in sorted(axes) if keepdims else ():
            result = xp.expand_dims(result, axis)
        return result
    if isinstance(ord, str) or abs(ord) not in BY_SUMS:
        raise TypeError(
            f"a matrix norm of order {ord!r}; 'fro', 'nuc', 1, 2, inf and their opposites are known"
        )
    summed_axis = axes[BY_SUMS[abs(ord)]]
    (other_axis,) = (axis for axis in axes if axis != summed_axis)
    sums = xp.sum(xp.abs(x), summed_axis, keepdims=True)
    result = (xp.max if ord > 0 else xp.min)(sums, other_axis, keepdims=True)
    return result if keepdims else xp.squeeze(result, axes)


def cond(x: Tensor, ord: Any = None) -> Tensor:
    """Return the condition number: how much a linear system may enlarge an error."""
    if ord in (None, 2, -2):
        values = svdvals(x)
        largest, smallest = values[..., 0], values[..., -1]
        return smallest / largest if ord == -2 else largest / smallest
    return matrix_norm(x, ord) * matrix_norm(xp.inv(x), ord)


def normalize(x: Tensor, ord: Any = 2, axis: Any = -1, eps: Any = 0.0) -> Tensor:
    return x / xp.maximum(xp.norm(x, axis, True, ord), eps)


def diagonal(x: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Return the diagonals of matrices in two axes, along a new last axis."""
    axis_count = rank(x)
    are_last = (axis1 % axis_count, axis2 % axis_count) == (axis_count - 2, axis_count - 1)
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
    axis_count = rank(x)
    if axis_count not in (1, 2):
        raise TypeError(f"diag of a tensor of {axis_count} axes; it takes a vector or a matrix")
    return embedded(x, k) if axis_count == 1 else diagonal(x, k)


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
    shape_a, shape_b = ((1,) * (axes - rank(x)) + shape_of(x) for x in (a, b))
    expanded_a = xp.reshape(a, tuple(n for size in shape_a for n in (size, 1)))
    expanded_b = xp.reshape(b, tuple(n for size in shape_b for n in (1, size)))
    shape = tuple(n * m for n, m in zip(shape_a, shape_b, strict=True))
    return xp.reshape(xp.multiply(expanded_a, expanded_b), shape)


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
    letters_left = "".join(letter for letter in (*left, *right) if letter not in shared)
    return xp.einsum(f"{''.join(left)},{''.join(right)}->{letters_left}", a, b)


def multi_dot(arrays: Any) -> Tensor:
    return functools.reduce(xp.matmul, arrays)


def cross(a: Tensor, b: Tensor, axis: int | None = -1) -> Tensor:
    """Return the cross product of vectors of three elements along an axis, by default the last."""
    axis = -1 if axis is None else axis
    for x in (a, b):
        if length(x, axis) != 3:
            raise TypeError(f"cross along an axis of length {length(x, axis)}; 3 is known")
    first_products = xp.multiply(xp.roll(a, -1, axis), xp.roll(b, 1, axis))
    return xp.subtract(first_products, xp.multiply(xp.roll(a, 1, axis), xp.roll(b, -1, axis)))


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
    deviations = xp.sqrt(diagonal(product))
    normalized = xp.divide(xp.divide(product, xp.expand_dims(deviations, 1)), deviations)
    return xp.clip(normalized, -1.0, 1.0)


def matvec(a: Tensor, b: Tensor) -> Tensor:
    return xp.squeeze(xp.matmul(a, xp.expand_dims(b, -1)), -1)


def vecmat(a: Tensor, b: Tensor) -> Tensor:
    return xp.squeeze(xp.matmul(xp.expand_dims(a, -2), b), -2)
