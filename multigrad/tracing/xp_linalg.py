"""The dialect `xg.xp`, linear algebra: the functions that are more than one op; see `xp_all.py`."""

from __future__ import annotations

from typing import Any

from .xp_ops import expand_dims, logabsdet, signdet, squeeze
from .xp_transposes import solve_matrices, triangular_solve

Tensor = Any

__all__ = ["slogdet", "solve", "solve_triangular"]


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
