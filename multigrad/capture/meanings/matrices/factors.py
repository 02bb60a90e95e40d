"""Factors of matrices under the names that libraries give them, composed from the ops.

Vectors beyond the singular values, and columns of q beyond those of the matrix, are not unique and
have no derivative: where there are any, a library's "full" form is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....graph.ir.types import INT32, T
from ....trace.xp import all as xp
from ....trace.xp import transposes
from ..parts import length, rank, shape_of

Tensor = Any


# --- LU -------------------------------------------------------------------------------------------
def lu_factor(x: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
    """The packed factors, and pivots in int32 that count from `first`."""
    packed, pivots = xp.lu(x)
    return packed, xp.cast(pivots + first if first else pivots, INT32)


def lu_permuted(x: Tensor) -> tuple[Tensor, Tensor]:
    """The packed factors and the permutation, in int32."""
    packed, pivots = xp.lu(x)
    return packed, xp.cast(transposes.lu_permutation(pivots, x), INT32)


def unpacked(packed: Tensor) -> tuple[Tensor, Tensor]:
    """l and u, with as many columns and rows as the smaller length."""
    rows, columns = length(packed, -2), length(packed, -1)
    count = min(rows, columns)
    lower = xp.tril(xp.getitem(packed, (..., slice(None), slice(0, count))), -1)
    upper = xp.triu(xp.getitem(packed, (..., slice(0, count), slice(None))))
    return xp.where(np.eye(rows, count, dtype=bool), 1.0, lower), upper


def permutation_matrix(places: Tensor) -> Tensor:
    """Ones where each row of l u stands, bools."""
    return xp.matrix_transpose(xp.one_hot(places, length(places, -1)))


def lu(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """p, l and u, of which the product is x."""
    packed, pivots = xp.lu(x)
    matrix = permutation_matrix(transposes.lu_permutation(pivots, x))
    return (xp.cast(matrix, T), *unpacked(packed))


def in_rows(b: Tensor, places: Tensor, packed: Tensor) -> Tensor:
    """Rows of right sides at places, for each matrix."""
    batch = np.broadcast_shapes(shape_of(b)[:-2], shape_of(packed)[:-2])
    shape = (*batch, *shape_of(b)[-2:])
    at = xp.broadcast_to(xp.expand_dims(places, -1), shape)
    return transposes.take_along(xp.broadcast_to(b, shape), at, axis=-2)


def lu_solve(packed: Tensor, places: Tensor, b: Tensor, transposed: bool = False) -> Tensor:
    """Solve a x = b, or of a's transpose, by a's factors and permutation."""
    if not transposed:
        rows = in_rows(b, places, packed)
        half = xp.solve_triangular(packed, rows, lower=True, unit_diagonal=True)
        return xp.solve_triangular(packed, half)
    half = xp.solve_triangular(packed, b, transposed=True)
    rows = xp.solve_triangular(packed, half, lower=True, transposed=True, unit_diagonal=True)
    return in_rows(rows, xp.argsort(places, -1), packed)


def lu_solve_of(packed: Tensor, pivots: Tensor, b: Tensor, transposed: bool = False) -> Tensor:
    """The same by pivots from 0, of vectors too."""
    columns = xp.expand_dims(b, -1) if rank(b) == 1 else b
    result = lu_solve(packed, transposes.lu_permutation(pivots, packed), columns, transposed)
    return xp.squeeze(result, -1) if rank(b) == 1 else result


# --- singular values ------------------------------------------------------------------------------
def svd(x: Tensor, full: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """u, the singular values, v transposed.

    Raises:
        TypeError: more vectors than values are asked for.
    """
    if full and length(x, -2) != length(x, -1):
        raise TypeError("singular vectors beyond the singular values; use full_matrices=False")
    return xp.svd(x)


def svdvals(x: Tensor) -> Tensor:
    return xp.svd(x)[1]


# --- eigenvalues ----------------------------------------------------------------------------------
def is_upper(triangle: Any) -> bool:
    """Return whether the upper triangle is named.

    Raises:
        TypeError: it is none.
    """
    if triangle not in ("L", "U", "l", "u"):
        raise TypeError(f"UPLO={triangle!r}; 'L' and 'U' are known")
    return triangle in ("U", "u")


def eigh(x: Tensor, upper: bool = False) -> tuple[Tensor, Tensor]:
    """The eigenvalues and the vectors, of one triangle."""
    return xp.eigh(x, lower=not upper)


def eigvalsh(x: Tensor, upper: bool = False) -> Tensor:
    return eigh(x, upper)[0]


# --- QR -------------------------------------------------------------------------------------------
def qr(x: Tensor, full: bool = False) -> tuple[Tensor, Tensor]:
    """q and r.

    Raises:
        TypeError: more columns of q than x has are asked for.
    """
    if full and length(x, -2) > length(x, -1):
        raise TypeError("columns of q beyond those of the matrix; use the reduced mode")
    return xp.qr(x)


def numpy_qr(x: Tensor, mode: Any) -> Any:
    """NumPy's modes: a pair, or r alone.

    Raises:
        TypeError: another mode.
    """
    if mode not in ("reduced", "complete", "r"):
        raise TypeError(f"qr with mode={mode!r}; 'reduced' and 'r' are known")
    pair = qr(x, mode == "complete")
    return pair[1] if mode == "r" else pair
