"""TensorFlow's rows of linear algebra, each function named as its op; see
`multigrad/ops/linalg.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from multigrad.backend import rows_of

from .elementwise import widened

Tensor = Any


@widened
def cholesky(x: Tensor) -> Tensor:
    # Where there is no factor, its kernel leaves the upper half as the memory was (2.21).
    return tf.linalg.band_part(tf.linalg.cholesky(x), -1, 0)


@widened
def triangular_solve(a: Tensor, b: Tensor, *, lower: bool, transposed: bool, unit: bool) -> Tensor:
    if unit:
        a = tf.linalg.set_diag(a, tf.ones_like(tf.linalg.diag_part(a)))
    return tf.linalg.triangular_solve(a, b, lower=lower, adjoint=transposed)


@widened
def solve(a: Tensor, b: Tensor) -> Tensor:
    if a.shape[:-2] != b.shape[:-2] or a.shape.rank is None:
        batch = tf.broadcast_dynamic_shape(tf.shape(a)[:-2], tf.shape(b)[:-2])
        a, b = (tf.broadcast_to(m, tf.concat([batch, tf.shape(m)[-2:]], 0)) for m in (a, b))
    return tf.linalg.solve(a, b)


@widened
def inv(x: Tensor) -> Tensor:
    return tf.linalg.inv(x)


@widened
def pinv(x: Tensor, *, rtol: float, epsilons: float) -> Tensor:
    eps = float(np.finfo(x.dtype.as_numpy_dtype).eps)
    rows = tf.cast(tf.reduce_max(tf.shape(x)[-2:]), x.dtype)
    return tf.linalg.pinv(x, tf.maximum(rtol, epsilons * eps * rows))


@widened
def det(x: Tensor) -> Tensor:
    return tf.linalg.det(x)


@widened
def logabsdet(x: Tensor) -> Tensor:
    return tf.linalg.slogdet(x).log_abs_determinant


@widened
def signdet(x: Tensor) -> Tensor:
    return tf.linalg.slogdet(x).sign


OPS = rows_of(vars())
