"""TensorFlow's dialect, linear algebra; see `capture.py`.

A handler takes TensorFlow's own parameters in TensorFlow's order, without `name`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from multigrad.capture import linalg
from multigrad.tracing import xp_all as xp

Tensor = Any
SLOGDET = type(tf.linalg.slogdet([[1.0]]))


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


ALIASES: dict[Any, Callable[..., Any]] = {
    tf.linalg.cholesky: cholesky, tf.linalg.cholesky_solve: cholesky_solve,
    tf.linalg.triangular_solve: triangular_solve, tf.linalg.solve: solve, tf.linalg.inv: inv,
    tf.linalg.pinv: pinv, tf.linalg.det: det, tf.linalg.logdet: logdet, tf.linalg.slogdet: slogdet,
}  # fmt: skip
