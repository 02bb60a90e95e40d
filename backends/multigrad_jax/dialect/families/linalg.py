"""JAX's dialect, linear algebra; see `table.py`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy import linalg as jsp

from multigrad.capture.code.binding import Library
from multigrad.capture.meanings import complexes, matrices
from multigrad.capture.meanings.composites import is_whole
from multigrad.trace.xp import all as xp

Tensor = Any
# What they return, found without a computation: `jax.distributed.initialize` must come before all.
SVD, EIGH, QR = (
    type(jax.eval_shape(f, jax.ShapeDtypeStruct((1, 1), jnp.float32)))
    for f in (jnp.linalg.svd, jnp.linalg.eigh, jnp.linalg.qr)
)


def as_floats(a: Tensor) -> Tensor:
    """Integers as floats before they add up, where they would wrap around."""
    return xp.divide(a, 1) if is_whole(a) else a


def cholesky(a: Tensor, *, upper: bool = False, symmetrize_input: bool = True) -> Tensor:
    return matrices.cholesky(matrices.symmetric(as_floats(a)) if symmetrize_input else a, upper)


def pinv(a: Tensor, rtol: Any = None, hermitian: bool = False, *, rcond: Any = None) -> Tensor:
    if hermitian:
        raise TypeError("pinv with hermitian")
    return matrices.pinv(a, rcond if rtol is None else rtol, 10.0)


def svd(
    a: Tensor,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: Any = None,
) -> Any:
    if hermitian or subset_by_index is not None:
        raise TypeError("svd with hermitian or subset_by_index")
    if not compute_uv:
        return matrices.svdvals(a)
    return SVD(*matrices.svd(a, full_matrices))


def eigh(a: Tensor, UPLO: str | None = None, symmetrize_input: bool = True) -> Any:
    a = as_floats(a)
    upper = UPLO is not None and matrices.is_upper(UPLO)
    return EIGH(*matrices.eigh(matrices.symmetric(a) if symmetrize_input else a, upper))


def qr(a: Tensor, mode: str = "reduced") -> Any:
    results = matrices.numpy_qr(a, mode)
    return results if mode == "r" else QR(*results)


NUMPYS = Library(jnp.linalg)
ALIASES: dict[Any, Any] = {
    **complexes.of_library(jnp.fft),
    jax.lax.complex: complexes.Complex,
    **NUMPYS.called(
        {
            matrices: "svdvals; norm",
            xp: "det; inv; solve",
        }
    ),
    **Library(jsp).called({xp: "expm(max_squarings=)"}),
    **NUMPYS.taking_the_same({__name__: "cholesky; eigh; pinv; qr; svd"}),
}
