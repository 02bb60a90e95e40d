"""JAX's kernels of linear algebra, named as their ops; see `multigrad/graph/ops/arrays/linalg.py`.

None of them raises: a matrix without a factor or inverse gives NaN or an infinity.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.scipy import linalg as jsp

from multigrad.backend import rows_of
from multigrad.graph import ops
from multigrad.graph.ops.arrays.linalg import PADE_REACHES

from .elementwise import accumulated

Tensor = Any


def cholesky(x: Tensor) -> Tensor:
    return lax.linalg.cholesky(x, symmetrize_input=False)


def triangular_solve(a: Tensor, b: Tensor, *, lower: bool, transposed: bool, unit: bool) -> Tensor:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(m, (*batch, *m.shape[-2:])) for m in (a, b))
    return lax.linalg.triangular_solve(
        a, b, left_side=True, lower=lower, transpose_a=transposed, unit_diagonal=unit
    )


def solve(a: Tensor, b: Tensor) -> Tensor:
    # Right sides of one axis less count as vectors.
    b = b.reshape((1,) * (a.ndim - b.ndim) + b.shape)
    return jnp.linalg.solve(a, b)


def pinv(x: Tensor, *, rtol: float, epsilons: float) -> Tensor:
    cutoff = max(rtol, epsilons * max(x.shape[-2:]) * float(jnp.finfo(x.dtype).eps))
    # infinities as NaN: LAPACK may not end for one
    return jnp.linalg.pinv(x + 0 * x, rtol=cutoff)


def expm(x: Tensor) -> Tensor:
    # jax's own (0.10) squares once too few: 4e6 eps at a norm of 9; and it is NaN above 3e5.
    norm = jnp.max(jnp.sum(jnp.abs(x), -2), -1, initial=0.0)[..., None, None]
    _, squarings = jnp.frexp(jnp.where(jnp.isfinite(norm), norm, 0.0) / PADE_REACHES)
    squarings = jnp.maximum(squarings, 0)

    def square(i: Tensor, y: Tensor) -> Tensor:
        return jnp.where(squarings > i, jnp.matmul(y, y, precision="highest"), y)

    y = jsp.expm(jnp.ldexp(x, -squarings), max_squarings=0)
    return lax.fori_loop(0, jnp.max(squarings, initial=0), square, y)


def logabsdet(x: Tensor) -> Tensor:
    return jnp.linalg.slogdet(x).logabsdet


def signdet(x: Tensor) -> Tensor:
    return jnp.linalg.slogdet(x).sign


# --- factors --------------------------------------------------------------------------------------
def lu(x: Tensor) -> Tensor:
    return lax.linalg.lu(x)[0]


def lu_pivots(x: Tensor) -> Tensor:
    # in float32 for 16 bits, as the factors are computed, so that both agree
    return lax.linalg.lu(accumulated(x))[1]


def lu_permutation(indices: Tensor, like: Tensor) -> Tensor:
    return lax.linalg.lu_pivots_to_permutation(indices.astype(jnp.int32), like.shape[-2])


def svd(x: Tensor) -> Tensor:
    # infinities as NaN: LAPACK may not end for one
    u, s, vh = jnp.linalg.svd(x + 0 * x, full_matrices=False)
    # an op has one result: the values are the first row above the vectors
    return jnp.concatenate((s[..., None, :], u, jnp.swapaxes(vh, -1, -2)), -2)


def eigh(x: Tensor, *, lower: bool) -> Tensor:
    v, w = lax.linalg.eigh(x, lower=lower, symmetrize_input=False)
    # the values above the vectors, as in svd
    return jnp.concatenate((w[..., None, :], v), -2)


def eigvalsh(x: Tensor, *, lower: bool) -> Tensor:
    return lax.linalg.eigh(x, lower=lower, symmetrize_input=False)[1]


def svdvals(x: Tensor) -> Tensor:
    # as in svd
    return jnp.linalg.svd(x + 0 * x, compute_uv=False)


def qr(x: Tensor) -> Tensor:
    return jnp.linalg.qr(x)[0]


# --- spectra --------------------------------------------------------------------------------------
def fft(x: Tensor, *, axes: tuple[int, ...], inverse: bool) -> Tensor:
    whole = lax.complex(x[..., 0], x[..., 1])
    transform = jnp.fft.ifft if inverse else jnp.fft.fft
    for axis in axes:
        whole = transform(whole, axis=axis + 1, norm="forward" if inverse else None)
    return jnp.stack((whole.real, whole.imag), -1)


OPS = {
    **rows_of(vars()),
    ops.INV: jnp.linalg.inv,
    ops.DET: jnp.linalg.det,
}
