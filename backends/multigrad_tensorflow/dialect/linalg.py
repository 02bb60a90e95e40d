"""The meaning in ops of TensorFlow's linear algebra and diagonals, for functions and for the
operations of graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import index
from typing import Any

from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.meanings import matrices
from multigrad.engine.capture.meanings.parts import rank

from .arrays import TENSORFLOW, static

Tensor = Any
Handler = Callable[..., Any]


def solve(matrix: Tensor, rhs: Tensor, adjoint: bool = False) -> Tensor:
    return xp.solve(matrices.turned(matrix, adjoint), rhs)


def inv(input: Tensor, adjoint: bool = False) -> Tensor:
    return xp.inv(matrices.turned(input, adjoint))


def qr(input: Tensor, full_matrices: bool = False) -> tuple[Tensor, ...]:
    return matrices.qr(input, full_matrices)


def svd(input: Tensor, compute_uv: bool = True, full_matrices: bool = False) -> tuple[Tensor, ...]:
    if not compute_uv:
        return (matrices.svdvals(input),)
    u, s, vh = matrices.svd(input, full_matrices)
    return s, u, xp.matrix_transpose(vh)


def eigh(input: Tensor, compute_v: bool = True) -> tuple[Tensor, ...]:
    """Return the values and vectors of the lower triangle."""
    # TensorFlow's gradient reaches only the lower triangle
    symmetric = xp.add(xp.tril(input), xp.matrix_transpose(xp.tril(input, -1)))
    return matrices.eigh(symmetric)[: 2 if compute_v else 1]


def single_diagonal(k: Any) -> int:
    """Return the number of a diagonal; TensorFlow also takes the first and last of several."""
    diagonal = static(k)
    if isinstance(diagonal, list | tuple):
        raise TypeError(f"a band of diagonals {diagonal}; give one")
    return index(diagonal)


def diag_part(input: Tensor, k: Any) -> Tensor:
    return matrices.matrix_diagonal(input, single_diagonal(k))


def diag(
    diagonal: Tensor, k: Any, rows: Any, columns: Any, padding: Any, align: str = ""
) -> Tensor:
    if (rows, columns, padding) != (-1, -1, 0):
        raise TypeError("diag of another size than its diagonal's, or with a padding")
    return matrices.embedded(diagonal, single_diagonal(k))


def set_diag(input: Tensor, diagonal: Tensor, k: Any, align: str = "") -> Tensor:
    if single_diagonal(k):
        raise TypeError(f"set_diag of the diagonal {k}; the main one is known")
    return matrices.with_diagonal(input, diagonal)


def tensor_diag(diagonal: Tensor) -> Tensor:
    return xp.reshape(matrices.embedded(xp.reshape(diagonal, -1)), (*diagonal.shape,) * 2)


def tensor_diag_part(input: Tensor) -> Tensor:
    lengths = (*input.shape,)[: rank(input) // 2]
    n = math.prod(lengths)
    return xp.reshape(matrices.diagonal(xp.reshape(input, (n, n))), lengths)


ALIASES: dict[Any, Handler] = TENSORFLOW.called(
    {
        __name__: "linalg.diag_part(padding_value=, align=)",
        matrices: "tensordot; cross: linalg.cross",
        xp: """
            cholesky: linalg.cholesky; det: linalg.det; expm: linalg.expm;
            solve_triangular: linalg.triangular_solve(adjoint=transposed)
        """,
    }
)
# By the operation of a graph.
OPERATIONS: dict[str, Handler] = {
    "Diag": tensor_diag,
    "DiagPart": tensor_diag_part,
    "LogMatrixDeterminant": xp.slogdet,
    "Lu": matrices.lu_permuted,
    "MatrixDiag": matrices.embedded,
    "MatrixDiagV3": diag,
    "MatrixInverse": inv,
    "MatrixSetDiag": matrices.with_diagonal,
    "MatrixSetDiagV3": set_diag,
    "MatrixSolve": solve,
    "Qr": qr,
    "SelfAdjointEigV2": eigh,
    "Svd": svd,
}
