"""TensorFlow's dialect, linear algebra; see `capture.py`.

A handler takes TensorFlow's own parameters in TensorFlow's order, without `name`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from multigrad.capture import factors, linalg
from multigrad.tracing import xp_all as xp

Tensor = Any
# In a graph of its own: a function being compiled may be what imports this, and XLA cannot factor;
# to run them would settle which devices there are, before the user could.
with tf.Graph().as_default():
    SLOGDET, QR, LU = (type(f([[1.0]])) for f in (tf.linalg.slogdet, tf.linalg.qr, tf.linalg.lu))


def cholesky(input: Tensor) -> Tensor:
    return xp.cholesky(input)


def cholesky_solve(chol: Tensor, rhs: Tensor) -> Tensor:
    return linalg.cholesky_solve(rhs, chol)


def triangular_solve(matrix: Tensor, rhs: Tensor, lower: bool, adjoint: bool) -> Tensor:
    return linalg.solve_triangular(matrix, rhs, lower=lower, transposed=adjoint)


def solve(matrix: Tensor, rhs: Tensor, adjoint: bool) -> Tensor:
    return xp.solve(linalg.turned(matrix, adjoint), rhs)


def inv(input: Tensor, adjoint: bool) -> Tensor:
    return xp.inv(linalg.turned(input, adjoint))


def pinv(a: Tensor, rcond: Any, validate_args: Any) -> Tensor:
    return linalg.pinv(a, rcond, 10.0)


def det(input: Tensor) -> Tensor:
    return xp.det(input)


def logdet(matrix: Tensor) -> Tensor:
    return linalg.logdet_of_positive(matrix)


def slogdet(input: Tensor) -> Any:
    return SLOGDET(*xp.slogdet(input))


# --- factors --------------------------------------------------------------------------------------
def lu(input: Tensor, output_idx_type: Any) -> Any:
    packed, places = factors.lu_permuted(input)
    return LU(packed, xp.cast(places, output_idx_type))


def lu_solve(lower_upper: Tensor, perm: Tensor, rhs: Tensor, validate_args: Any) -> Tensor:
    return factors.lu_solve(lower_upper, perm, rhs)


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


ALIASES: dict[Any, Callable[..., Any]] = {
    tf.linalg.cholesky: cholesky, tf.linalg.cholesky_solve: cholesky_solve,
    tf.linalg.triangular_solve: triangular_solve, tf.linalg.solve: solve, tf.linalg.inv: inv,
    tf.linalg.pinv: pinv, tf.linalg.det: det, tf.linalg.logdet: logdet, tf.linalg.slogdet: slogdet,
    tf.linalg.lu: lu, tf.linalg.lu_solve: lu_solve, tf.linalg.svd: svd, tf.linalg.eigh: eigh,
    tf.linalg.eigvalsh: eigvalsh, tf.linalg.qr: qr,
}  # fmt: skip
