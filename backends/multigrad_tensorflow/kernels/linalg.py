"""TensorFlow's kernels of linear algebra; see `multigrad/graph/ops/arrays/linalg.py`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from multigrad.backend import rows_of
from multigrad.graph import ops
from multigrad.graph.ops.arrays.linalg import PADE_REACHES

from .elementwise import accumulated

Tensor = Any


def cholesky(x: Tensor) -> Tensor:
    # Without a factor the kernel (2.21) leaves the upper half uninitialized.
    return tf.linalg.band_part(tf.linalg.cholesky(x), -1, 0)


def triangular_solve(a: Tensor, b: Tensor, *, lower: bool, transposed: bool, unit: bool) -> Tensor:
    if unit:
        # it has no option for a unit diagonal
        a = tf.linalg.set_diag(a, tf.ones_like(tf.linalg.diag_part(a)))
    return tf.linalg.triangular_solve(a, b, lower=lower, adjoint=transposed)


def solve(a: Tensor, b: Tensor) -> Tensor:
    if a.shape[:-2] != b.shape[:-2] or a.shape.rank is None:
        # tf.linalg.solve does not broadcast the axes of the batch
        batch = tf.broadcast_dynamic_shape(tf.shape(a)[:-2], tf.shape(b)[:-2])
        a, b = (tf.broadcast_to(m, tf.concat([batch, tf.shape(m)[-2:]], 0)) for m in (a, b))
    return tf.linalg.solve(a, b)


def pinv(x: Tensor, *, rtol: float, epsilons: float) -> Tensor:
    eps = float(np.finfo(x.dtype.as_numpy_dtype).eps)
    rows = tf.cast(tf.reduce_max(tf.shape(x)[-2:]), x.dtype)
    return tf.linalg.pinv(x, tf.maximum(rtol, epsilons * eps * rows))


def expm(x: Tensor) -> Tensor:
    # TensorFlow's (2.21) squares once too few: 4e6 eps at a norm of 9; one NaN matrix spoils all.
    norm = tf.reduce_max(tf.reduce_sum(tf.abs(x), -2, keepdims=True), -1, keepdims=True)
    known = tf.math.is_finite(norm) & (norm >= 0)  # without rows the maximum is -inf
    ratio = tf.maximum(tf.where(known, norm, 0.0) / PADE_REACHES, 1.0)
    squarings = tf.math.ceil(tf.math.log(ratio) / math.log(2.0))

    def square(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, tf.where(squarings > i, tf.matmul(y, y), y)

    y = tf.linalg.expm(tf.where(known, x, tf.zeros_like(x)) * tf.pow(2.0, -squarings))
    i = tf.zeros((), x.dtype)
    y = tf.while_loop(lambda i, _: tf.reduce_any(squarings > i), square, (i, y))[1]
    return tf.where(known, y, math.nan)


def logabsdet(x: Tensor) -> Tensor:
    return tf.linalg.slogdet(x).log_abs_determinant


def signdet(x: Tensor) -> Tensor:
    return tf.linalg.slogdet(x).sign


# --- factors --------------------------------------------------------------------------------------
def factored(x: Tensor) -> tuple[Tensor, Tensor]:
    shape, static = tf.shape(x), x.shape
    batch, count = shape[:-2], tf.minimum(shape[-2], shape[-1])
    # tf.linalg.lu (2.21) takes only square, invertible matrices, and not in XLA
    rows, columns = tf.range(shape[-2]), tf.range(shape[-1])

    def step(i: Tensor, x: Tensor, pivots: Tensor) -> tuple[Tensor, ...]:
        candidates = tf.where(rows >= i, tf.abs(x[..., i]), -1)
        best = tf.argmax(candidates, -1, output_type=tf.int32)
        x = exchanged(x, i, tf.reshape(best, tf.concat([batch, [1, 1]], 0)), rows[:, None])
        top, pivot = x[..., i, None, :], x[..., i, i, None]
        lower = x[..., i] / tf.where(pivot == 0, tf.ones_like(pivot), pivot)
        lower = tf.where(rows > i, lower, x[..., i])
        column = tf.expand_dims(lower, -1)
        rest = x - column * top
        x = tf.where((rows[:, None] > i) & (columns > i), rest, x)
        x = tf.where(columns == i, column, x)
        return i + 1, x, tf.where(tf.range(count) == i, tf.expand_dims(best, -1), pivots)

    pivots = tf.zeros(tf.concat([batch, [count]], 0), tf.int32)
    state = (0, x, pivots)
    _, packed, pivots = tf.while_loop(
        lambda i, *_: i < count,
        step,
        state,
        shape_invariants=(tf.TensorShape([]), static, pivots.shape),
    )
    return packed, pivots


def exchanged(x: Tensor, i: Tensor, other: Tensor, rows: Tensor) -> Tensor:
    lower = tf.reduce_sum(tf.where(rows == other, x, tf.zeros_like(x)), -2, keepdims=True)
    return tf.where(rows == i, lower, tf.where(rows == other, x[..., i, None, :], x))


def lu(x: Tensor) -> Tensor:
    return factored(x)[0]


def lu_pivots(x: Tensor) -> Tensor:
    return tf.cast(factored(accumulated(x))[1], tf.int64)


def lu_permutation(indices: Tensor, like: Tensor) -> Tensor:
    rows = tf.range(tf.shape(like, tf.int64)[-2])
    shape = tf.concat([tf.shape(indices)[:-1], tf.shape(rows)], 0)

    def step(i: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        moved = exchanged(places[..., None], i, indices[..., i, None, None], rows[:, None])
        return i + 1, moved[..., 0]

    places = tf.broadcast_to(rows, shape)
    count = tf.shape(indices, tf.int64)[-1]
    return tf.while_loop(lambda i, _: i < count, step, (tf.constant(0, tf.int64), places))[1]


def svd(x: Tensor) -> Tensor:
    s, u, v = tf.linalg.svd(x)
    # an op has one result: the values are the first row above the vectors
    return tf.concat((s[..., None, :], u, v), -2)


def eigh(x: Tensor, *, lower: bool) -> Tensor:
    w, v = tf.linalg.eigh(x if lower else tf.linalg.matrix_transpose(x))
    return tf.concat((w[..., None, :], v), -2)


def eigvalsh(x: Tensor, *, lower: bool) -> Tensor:
    return tf.linalg.eigvalsh(x if lower else tf.linalg.matrix_transpose(x))


def svdvals(x: Tensor) -> Tensor:
    return tf.linalg.svd(x, compute_uv=False)


def qr(x: Tensor) -> Tensor:
    return tf.linalg.qr(x)[0]


# --- spectra --------------------------------------------------------------------------------------
def fft(x: Tensor, *, axes: tuple[int, ...], inverse: bool) -> Tensor:
    whole = tf.complex(x[..., 0], x[..., 1])
    places = range(x.shape.rank - 1)
    for axis in axes:  # tf.signal transforms only the last axis
        turned = [*places]
        turned[axis + 1], turned[-1] = turned[-1], turned[axis + 1]
        whole = tf.transpose(whole, turned)
        if inverse:
            count = tf.cast(tf.shape(whole)[-1], x.dtype)
            whole = tf.signal.ifft(whole) * tf.complex(count, tf.zeros_like(count))
        else:
            whole = tf.signal.fft(whole)
        whole = tf.transpose(whole, turned)
    return tf.stack((tf.math.real(whole), tf.math.imag(whole)), -1)


OPS = {
    **rows_of(vars()),
    ops.INV: tf.linalg.inv,
    ops.DET: tf.linalg.det,
}
