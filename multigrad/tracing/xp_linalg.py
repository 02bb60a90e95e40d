"""The dialect `xg.xp`, linear algebra: the functions that are more than one op; see `xp_all.py`."""

from __future__ import annotations

from typing import Any

from .xp_arrays import dim
from .xp_ops import expand_dims, logabsdet, matmul, signdet, squeeze
from .xp_shapes import getitem, matrix_transpose, triu
from .xp_transposes import (
    lu_pivots,
    packed_eigh,
    packed_lu,
    packed_svd,
    part,
    qr_columns,
    solve_matrices,
    triangular_solve,
)

Tensor = Any

__all__ = ["eigh", "lu", "qr", "slogdet", "solve", "solve_triangular", "svd"]


def slogdet(x: Tensor) -> tuple[Tensor, Tensor]:
    """The signs of determinants, and the logarithms of their absolute values."""
    return signdet(x), logabsdet(x)


def solve(a: Tensor, b: Tensor) -> Tensor:
    """The x of a x = b: of one vector, or of matrices in the last two axes."""
    if b.ndim == 1:
        return squeeze(solve_matrices(a, expand_dims(b, -1)), -1)
    return solve_matrices(a, b)


def solve_triangular(
    a: Tensor,
    b: Tensor,
    *,
    lower: bool = False,
    transposed: bool = False,
    unit_diagonal: bool = False,
) -> Tensor:
    """The x of a x = b (`transposed`: of the transpose of a), of a one triangle being read."""
    is_vector = b.ndim == 1
    columns = expand_dims(b, -1) if is_vector else b
    result = triangular_solve(
        a, columns, lower=bool(lower), transposed=bool(transposed), unit=bool(unit_diagonal)
    )
    return squeeze(result, -1) if is_vector else result


def lu(x: Tensor) -> tuple[Tensor, Tensor]:
    """The factors of matrices in other rows, l below the diagonal and u from it on, and pivots: the
    row with which each was exchanged in turn, from 0.
    """
    return packed_lu(x), lu_pivots(x)


def svd(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """u, the singular values in descending order, and v transposed, of as many vectors as there are
    values; the signs of vectors are the backend's.
    """
    packed = packed_svd(x)
    first = getitem(x, (..., slice(0, 1)))
    turned = getitem(x, (..., slice(0, 1), slice(None)))
    u = part(packed, first, 1, axis=-2)
    v = part(packed, matrix_transpose(turned), dim(x, -2) + 1, axis=-2)
    return u, getitem(packed, (..., 0, slice(None))), matrix_transpose(v)


def eigh(x: Tensor, *, lower: bool = True) -> tuple[Tensor, Tensor]:
    """Eigenvalues in ascending order, and vectors in columns, of symmetric matrices, of which one
    triangle is read; the signs of vectors are the backend's.
    """
    packed = packed_eigh(x, lower=bool(lower))
    return getitem(packed, (..., 0, slice(None))), getitem(
        packed, (..., slice(1, None), slice(None))
    )


def qr(x: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal columns q, and the upper triangle r, of which x is the product; the signs of
    columns are the backend's.
    """
    q = qr_columns(x)
    return q, triu(matmul(matrix_transpose(q), x))
