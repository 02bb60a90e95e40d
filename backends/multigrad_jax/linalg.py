"""JAX's rows of linear algebra, each function named as its op; see `multigrad/ops/linalg.py`.

Nothing raises: a matrix that has no factor or inverse gives NaN or an infinity.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from multigrad.backend import rows_of

from .elementwise import widened

Tensor = Any


@widened
def cholesky(x: Tensor) -> Tensor:
    return lax.linalg.cholesky(x, symmetrize_input=False)


@widened
def triangular_solve(a: Tensor, b: Tensor, *, lower: bool, transposed: bool, unit: bool) -> Tensor:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(m, (*batch, *m.shape[-2:])) for m in (a, b))
    return lax.linalg.triangular_solve(
        a, b, left_side=True, lower=lower, transpose_a=transposed, unit_diagonal=unit
    )


@widened
def solve(a: Tensor, b: Tensor) -> Tensor:
    # Right sides of one axis less count as vectors.
    b = b.reshape((1,) * (a.ndim - b.ndim) + b.shape)
    return jnp.linalg.solve(a, b)


@widened
def inv(x: Tensor) -> Tensor:
    return jnp.linalg.inv(x)


@widened
def pinv(x: Tensor, *, rtol: float, epsilons: float) -> Tensor:
    cutoff = max(rtol, epsilons * max(x.shape[-2:]) * float(jnp.finfo(x.dtype).eps))
    return jnp.linalg.pinv(x, rtol=cutoff)


@widened
def det(x: Tensor) -> Tensor:
    return jnp.linalg.det(x)


@widened
def logabsdet(x: Tensor) -> Tensor:
    return jnp.linalg.slogdet(x).logabsdet


@widened
def signdet(x: Tensor) -> Tensor:
    return jnp.linalg.slogdet(x).sign


OPS = rows_of(vars())
