"""TensorFlow's dialect, linear algebra; see `table.py`.

A handler takes TensorFlow's own parameters in TensorFlow's order, without `name`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from multigrad.capture.meanings import complexes
from multigrad.capture.meanings.matrices import factors, linalg
from multigrad.trace.xp import all as xp

from .shapes import TENSORFLOW

Tensor = Any
# In a graph of its own: a function being compiled may be what imports this, and XLA cannot factor;
# to run them would settle which devices there are, before the user could.
with tf.Graph().as_default():
    SLOGDET, QR, LU = (type(f([[1.0]])) for f in (tf.linalg.slogdet, tf.linalg.qr, tf.linalg.lu))


def solve(matrix: Tensor, rhs: Tensor, adjoint: bool) -> Tensor:
    return xp.solve(linalg.turned(matrix, adjoint), rhs)


def inv(input: Tensor, adjoint: bool) -> Tensor:
    return xp.inv(linalg.turned(input, adjoint))


def slogdet(input: Tensor) -> Any:
    return SLOGDET(*xp.slogdet(input))


# --- factors --------------------------------------------------------------------------------------
def lu(input: Tensor, output_idx_type: Any) -> Any:
    packed, places = factors.lu_permuted(input)
    return LU(packed, xp.cast(places, output_idx_type))


def svd(tensor: Tensor, full_matrices: bool, compute_uv: bool) -> Any:
    """The values, u and v."""
    if not compute_uv:
        return factors.svdvals(tensor)
    u, s, vh = factors.svd(tensor, full_matrices)
    return s, u, xp.matrix_transpose(vh)


def of_lower(x: Tensor) -> Tensor:
    """Made symmetric from the lower triangle, to which alone TensorFlow gives a gradient."""
    return xp.add(xp.tril(x), xp.matrix_transpose(xp.tril(x, -1)))


def eigh(tensor: Tensor) -> tuple[Tensor, Tensor]:
    return factors.eigh(of_lower(tensor))


def eigvalsh(tensor: Tensor) -> Tensor:
    return factors.eigvalsh(of_lower(tensor))


def qr(input: Tensor, full_matrices: bool) -> Any:
    return QR(*factors.qr(input, full_matrices))


NAMED = TENSORFLOW.called(
    {
        xp: "cholesky: linalg.cholesky; det: linalg.det; expm: linalg.expm",
        linalg: """
            solve_triangular: linalg.triangular_solve(adjoint=transposed)
        """,
    }
)
ALIASES: dict[Any, Callable[..., Any]] = {
    **TENSORFLOW.taking_the_same(
        {
            __name__: """
                linalg.solve; linalg.inv; linalg.slogdet; linalg.lu; linalg.svd; linalg.eigh;
                linalg.eigvalsh; linalg.qr
            """,
        }
    ),
    **{getattr(tf.signal, kind): row for kind, row in complexes.TRANSFORMS_2D.items()},
    tf.complex: complexes.Complex,
}
