"""Linear algebra under the names that libraries give it, composed from the ops.

Which triangle is read, where the right sides stand and which axes are those of vectors differ from
library to library: a dialect says it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....trace.xp import all as xp
from ..parts import length, rank

Tensor = Any


def turned(x: Tensor, transposed: bool = True) -> Tensor:
    return xp.matrix_transpose(x) if transposed else x


# --- factors --------------------------------------------------------------------------------------
def cholesky(x: Tensor, upper: bool = False) -> Tensor:
    """The lower factor of the lower triangle, or the upper one of the upper triangle."""
    return turned(xp.cholesky(turned(x, upper)), upper)


def symmetric(x: Tensor) -> Tensor:
    """The mean of a matrix and its transpose."""
    return xp.divide(xp.add(x, xp.matrix_transpose(x)), 2)


def cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    """Solve a x = b by a's factor."""
    half = xp.solve_triangular(factor, b, lower=not upper, transposed=upper)
    return xp.solve_triangular(factor, half, lower=not upper, transposed=not upper)


def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    """The inverse of a matrix by its factor."""
    diagonal = np.eye(length(factor, -1), dtype=bool)
    return cholesky_solve(xp.where(diagonal, 1.0, xp.zeros_like(factor)), factor, upper)


# --- systems --------------------------------------------------------------------------------------
def solve(a: Tensor, b: Tensor, vectors: bool = False) -> Tensor:
    """Solve a x = b, b holding matrices or vectors in its last axes."""
    return xp.squeeze(xp.solve(a, xp.expand_dims(b, -1)), -1) if vectors else xp.solve(a, b)


def solve_at_right(a: Tensor, b: Tensor) -> Tensor:
    """Solve x a = b."""
    return turned(xp.solve(turned(a), turned(b)))


def solve_positive(a: Tensor, b: Tensor, lower: bool) -> Tensor:
    """Solve a x = b for a positive definite a, of which a triangle is read."""
    return cholesky_solve(b, cholesky(a, not lower), not lower)


def solve_triangular(
    a: Tensor,
    b: Tensor,
    *,
    lower: bool,
    transposed: bool = False,
    unit: bool = False,
    left: bool = True,
    vectors: bool = False,
) -> Tensor:
    """Solve op(a) x = b, or x op(a) = b, b holding matrices or vectors in its last axes."""
    options = {"lower": bool(lower), "unit_diagonal": bool(unit)}
    if not left:
        right = xp.solve_triangular(a, turned(b), transposed=not transposed, **options)
        return turned(right)
    columns = xp.expand_dims(b, -1) if vectors else b
    result = xp.solve_triangular(a, columns, transposed=bool(transposed), **options)
    return xp.squeeze(result, -1) if vectors else result


TRANSPOSED = {0: False, 1: True, 2: True, "N": False, "T": True, "C": True}


def is_transposed(trans: Any) -> bool:
    """Return what SciPy's word for it says.

    Raises:
        TypeError: it is none.
    """
    if trans not in TRANSPOSED:
        raise TypeError(f"trans={trans!r}; {', '.join(map(repr, TRANSPOSED))} are known")
    return TRANSPOSED[trans]


def has_vectors(a: Tensor, b: Tensor) -> bool:
    """Return whether the right sides have one axis less than the matrices."""
    return rank(b) == rank(a) - 1


def scipy_solve(a: Tensor, b: Tensor, lower: bool, assume_a: Any, transposed: bool) -> Tensor:
    """Solve as SciPy does: what it may assume decides which part of a it reads."""
    if assume_a in ("pos", "positive definite"):
        return solve_positive(a, b, lower)
    if assume_a not in (None, "gen", "general"):
        raise TypeError(f"assume_a={assume_a!r}; 'gen' and 'pos' are known")
    return xp.solve(turned(a, transposed), b)


# --- inverses and determinants --------------------------------------------------------------------
def pinv(x: Tensor, rtol: Any, epsilons: float) -> Tensor:
    """The pseudo-inverse; without a cutoff, that many eps a row."""
    if rtol is None:
        return xp.pinv(x, 0.0, epsilons)
    return xp.pinv(x, float(rtol), 0.0)
