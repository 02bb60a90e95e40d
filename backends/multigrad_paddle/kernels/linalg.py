"""Paddle's rows of linear algebra, each function named as its op; see
`multigrad/graph/ops/arrays/linalg.py`.
"""

from __future__ import annotations

import paddle
import paddle.linalg as L

from multigrad.backend import rows_of

from .elementwise import where
from .widening import INT64, Tensor, rounded, wide, widened


@widened
def cholesky(x: Tensor) -> Tensor:
    return L.cholesky(x)


def triangular_solve(a: Tensor, b: Tensor, *, lower: bool, transposed: bool, unit: bool) -> Tensor:
    result = L.triangular_solve(
        wide(a), wide(b), upper=not lower, transpose=transposed, unitriangular=unit
    )
    return rounded(result, b.dtype)


def solve(a: Tensor, b: Tensor) -> Tensor:
    # Right sides of one axis less count as vectors.
    missing = len(a.shape) - len(b.shape)
    if missing > 0:
        b = paddle.reshape(b, [*[1] * missing, *b.shape])
    batch = paddle.broadcast_shape(a.shape[:-2], b.shape[:-2])
    a, b = (paddle.expand(m, [*batch, *m.shape[-2:]]) for m in (a, b))
    return rounded(L.solve(wide(a), wide(b)), b.dtype)


@widened
def inv(x: Tensor) -> Tensor:
    return L.inv(x)


@widened
def pinv(x: Tensor, *, rtol: float, epsilons: float) -> Tensor:
    cutoff = max(rtol, epsilons * max(x.shape[-2:]) * float(paddle.finfo(x.dtype).eps))
    u, s, vh = L.svd(x, full_matrices=False)
    inverse = where(s > cutoff * s[..., :1], 1 / s, 0.0)
    return transposed(vh) @ (paddle.unsqueeze(inverse, -1) * transposed(u))


def transposed(x: Tensor) -> Tensor:
    rank = len(x.shape)
    return paddle.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


@widened
def expm(x: Tensor) -> Tensor:
    return L.matrix_exp(x)


@widened
def det(x: Tensor) -> Tensor:
    return L.det(x)


@widened
def logabsdet(x: Tensor) -> Tensor:
    return L.slogdet(x)[1]


@widened
def signdet(x: Tensor) -> Tensor:
    return L.slogdet(x)[0]


# --- factors --------------------------------------------------------------------------------------
@widened
def lu(x: Tensor) -> Tensor:
    return L.lu(x)[0]


def lu_pivots(x: Tensor) -> Tensor:
    return L.lu(wide(x))[1].astype(INT64) - 1


def lu_permutation(indices: Tensor, like: Tensor) -> Tensor:
    rows, count = like.shape[-2], indices.shape[-1]
    numbers = paddle.arange(rows, dtype=INT64)
    places = paddle.expand(numbers, [*indices.shape[:-1], rows])
    for i in range(count):
        other = indices[..., i : i + 1]
        here = places[..., i : i + 1]
        there = paddle.sum(where(numbers == other, places, 0), -1, keepdim=True)
        places = where(numbers == i, there, where(numbers == other, here, places))
    return places


@widened
def svd(x: Tensor) -> Tensor:
    u, s, vh = L.svd(x, full_matrices=False)
    return paddle.concat((paddle.unsqueeze(s, -2), u, transposed(vh)), -2)


@widened
def eigh(x: Tensor, *, lower: bool) -> Tensor:
    w, v = L.eigh(x, "L" if lower else "U")
    return paddle.concat((paddle.unsqueeze(w, -2), v), -2)


@widened
def eigvalsh(x: Tensor, *, lower: bool) -> Tensor:
    return L.eigvalsh(x, "L" if lower else "U")


@widened
def svdvals(x: Tensor) -> Tensor:
    return L.svd(x, full_matrices=False)[1]


@widened
def qr(x: Tensor) -> Tensor:
    return L.qr(x)[0]


# --- spectra --------------------------------------------------------------------------------------
@widened
def fft(x: Tensor, *, axes: tuple[int, ...], inverse: bool) -> Tensor:
    whole, places = paddle.as_complex(x), [axis + 1 for axis in axes]
    if inverse:
        return paddle.as_real(paddle.fft.ifftn(whole, axes=places, norm="forward"))
    return paddle.as_real(paddle.fft.fftn(whole, axes=places))


OPS = rows_of(vars())
