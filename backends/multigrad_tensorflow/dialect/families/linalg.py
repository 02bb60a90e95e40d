"""TensorFlow's dialect, linear algebra; see `table.py` for the functions, and `operations.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from multigrad.capture.meanings import complexes, matrices
from multigrad.trace.xp import all as xp

from .shapes import TENSORFLOW

Tensor = Any


def solve(matrix: Tensor, rhs: Tensor, adjoint: bool = False) -> Tensor:
    return xp.solve(matrices.turned(matrix, adjoint), rhs)


def inv(input: Tensor, adjoint: bool = False) -> Tensor:
    return xp.inv(matrices.turned(input, adjoint))


# --- factors --------------------------------------------------------------------------------------
def lu(input: Tensor) -> tuple[Tensor, Tensor]:
    packed, places = matrices.lu_permuted(input)
    return packed, xp.cast(places, "int32")


def svd(input: Tensor, compute_uv: bool = True, full_matrices: bool = False) -> tuple[Tensor, ...]:
    """The values, u and v."""
    if not compute_uv:
        return (matrices.svdvals(input),)
    u, s, vh = matrices.svd(input, full_matrices)
    return s, u, xp.matrix_transpose(vh)


def eigh(input: Tensor, compute_v: bool = True) -> tuple[Tensor, ...]:
    """Of the lower triangle, to which alone TensorFlow gives a gradient."""
    symmetric = xp.add(xp.tril(input), xp.matrix_transpose(xp.tril(input, -1)))
    return matrices.eigh(symmetric)[: 2 if compute_v else 1]


NAMED = TENSORFLOW.called(
    {
        xp: "cholesky: linalg.cholesky; det: linalg.det; expm: linalg.expm",
        matrices: """
            solve_triangular: linalg.triangular_solve(adjoint=transposed)
        """,
    }
)
ALIASES: dict[Any, Callable[..., Any]] = {
    **{getattr(tf.signal, kind): row for kind, row in complexes.TRANSFORMS_2D.items()},
    tf.complex: complexes.Complex,
}
OPERATIONS: dict[str, Callable[..., Any]] = {
    "LogMatrixDeterminant": xp.slogdet,
    "Lu": lu,
    "MatrixInverse": inv,
    "MatrixSolve": solve,
    "Qr": lambda input, full_matrices=False: matrices.qr(input, full_matrices),
    "SelfAdjointEigV2": eigh,
    "Svd": svd,
}
