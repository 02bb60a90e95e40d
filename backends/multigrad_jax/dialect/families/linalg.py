"""JAX's dialect, linear algebra; see `table.py`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy import linalg as jsp

from multigrad.capture.code.binding import Library
from multigrad.capture.dialects import numpy_linalg
from multigrad.capture.meanings import complexes, parts
from multigrad.capture.meanings.matrices import factors, linalg, norms, scipy
from multigrad.capture.values.elementwise import is_whole
from multigrad.graph.ir.types import INT32
from multigrad.trace.xp import all as xp
from multigrad.trace.xp import transposes

Tensor = Any
# What they return, found without a computation: `jax.distributed.initialize` must come before all.
SLOGDET, SVD, EIGH, QR = (
    type(jax.eval_shape(f, jax.ShapeDtypeStruct((1, 1), jnp.float32)))
    for f in (jnp.linalg.slogdet, jnp.linalg.svd, jnp.linalg.eigh, jnp.linalg.qr)
)


def as_floats(a: Tensor) -> Tensor:
    """Integers as floats before they add up, where they would wrap around."""
    return xp.divide(a, 1) if is_whole(a) else a


# --- jax.numpy.linalg -----------------------------------------------------------------------------
def cholesky(a: Tensor, *, upper: bool = False, symmetrize_input: bool = True) -> Tensor:
    return linalg.cholesky(linalg.symmetric(as_floats(a)) if symmetrize_input else a, upper)


def pinv(a: Tensor, rtol: Any = None, hermitian: bool = False, *, rcond: Any = None) -> Tensor:
    if hermitian:
        raise TypeError("pinv with hermitian")
    return linalg.pinv(a, rcond if rtol is None else rtol, 10.0)


def slogdet(a: Tensor, *, method: str | None = None) -> Any:
    return SLOGDET(*xp.slogdet(a))


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
        return factors.svdvals(a)
    return SVD(*factors.svd(a, full_matrices))


def eigh(a: Tensor, UPLO: str | None = None, symmetrize_input: bool = True) -> Any:
    a = as_floats(a)
    upper = UPLO is not None and factors.is_upper(UPLO)
    return EIGH(*factors.eigh(linalg.symmetric(a) if symmetrize_input else a, upper))


def eigvalsh(a: Tensor, UPLO: str | None = "L", *, symmetrize_input: bool = True) -> Tensor:
    return eigh(a, UPLO, symmetrize_input)[0]


def qr(a: Tensor, mode: str = "reduced") -> Any:
    results = factors.numpy_qr(a, mode)
    return results if mode == "r" else QR(*results)


def vector_norm(x: Tensor, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Tensor:
    """Integers are squared as such, and wrap around."""
    if is_whole(x) and ord in (None, 2):
        return xp.sqrt(xp.sum(x * x, axis, keepdims))
    return norms.vector_norm(x, ord, axis, keepdims)


# --- jax.scipy.linalg -----------------------------------------------------------------------------
def cho_solve(c_and_lower: tuple[Tensor, bool], b: Tensor) -> Tensor:
    factor, lower = c_and_lower
    if parts.rank(b) != 1 and linalg.has_vectors(factor, b):
        raise TypeError("cho_solve of a batch of vectors; use cho_solve(c, b[..., None])")
    return linalg.cholesky_solve(b, factor, not lower)


def solve_triangular(
    a: Tensor, b: Tensor, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False
) -> Tensor:
    if parts.rank(b) != 1 and linalg.has_vectors(a, b):
        raise TypeError("solve_triangular of a batch of vectors; use b[..., None]")
    return scipy.solve_triangular(a, b, trans, lower, unit_diagonal)


def solve(a: Tensor, b: Tensor, lower: bool = False, assume_a: str = "gen") -> Tensor:
    """But for "pos" it solves in general."""
    return linalg.scipy_solve(a, b, lower, assume_a if assume_a == "pos" else "gen", False)


def lu_solve(lu_and_piv: tuple[Tensor, Tensor], b: Tensor, trans: int = 0) -> Tensor:
    if parts.rank(b) != 1 and linalg.has_vectors(lu_and_piv[0], b):
        raise TypeError("lu_solve of a batch of vectors; use lu_solve(lu, b[..., None])")
    return scipy.lu_solve(lu_and_piv, b, trans)


def scipy_eigh(
    a: Tensor,
    b: Any = None,
    lower: bool = True,
    eigvals_only: bool = False,
    eigvals: Any = None,
    type: int = 1,
) -> Any:
    """Of a matrix and its transpose, as jax has it."""
    if b is not None or eigvals is not None or type != 1:
        raise TypeError("eigh with b, eigvals or another type")
    values, vectors = factors.eigh(linalg.symmetric(as_floats(a)), not lower)
    return values if eigvals_only else (values, vectors)


def expm(A: Tensor, *, upper_triangular: bool = False, max_squarings: int = 16) -> Tensor:
    """Of matrices that take more squarings jax gives NaN."""
    if upper_triangular:
        raise TypeError("expm with upper_triangular; leave it out, xp.triu(A) is what it reads")
    return xp.expm(A)


# --- jax.lax.linalg -------------------------------------------------------------------------------
def lax_cholesky(x: Tensor, *, symmetrize_input: bool = True) -> Tensor:
    return xp.cholesky(linalg.symmetric(x) if symmetrize_input else x)


def triangular_solve(
    a: Tensor,
    b: Tensor,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    unit_diagonal: bool = False,
) -> Tensor:
    vectors = linalg.has_vectors(a, b)
    return linalg.solve_triangular(
        a,
        b,
        lower=lower,
        transposed=transpose_a != (vectors and not left_side),
        unit=unit_diagonal,
        left=left_side or vectors,
        vectors=vectors,
    )


def lax_lu(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    packed, pivots = factors.lu_factor(x)
    return packed, pivots, xp.cast(transposes.lu_permutation(pivots, x), INT32)


def lax_svd(
    x: Tensor, full_matrices: bool = True, compute_uv: bool = True, subset_by_index: Any = None
) -> Any:
    if subset_by_index is not None:
        raise TypeError("svd with subset_by_index")
    return factors.svd(x, full_matrices) if compute_uv else factors.svdvals(x)


def lax_eigh(
    x: Tensor,
    lower: bool = True,
    symmetrize_input: bool = True,
    sort_eigenvalues: bool = True,
    subset_by_index: Any = None,
) -> tuple[Tensor, Tensor]:
    """The vectors, and the values, sorted or not."""
    if subset_by_index is not None:
        raise TypeError("eigh with subset_by_index")
    w, v = factors.eigh(linalg.symmetric(x) if symmetrize_input else x, not lower)
    return v, w


def lax_qr(x: Tensor, pivoting: bool = False, full_matrices: bool = True) -> tuple[Tensor, Tensor]:
    if pivoting:
        raise TypeError("qr with pivoting")
    return factors.qr(x, full_matrices)


NUMPYS = Library(jnp.linalg)
ALIASES: dict[Any, Any] = {
    **complexes.of_library(jnp.fft),
    jax.lax.complex: complexes.Complex,
    **NUMPYS.called(numpy_linalg.NAMED),
    **NUMPYS.taking_the_same(
        {__name__: "cholesky; eigh; eigvalsh; pinv; qr; slogdet; svd; vector_norm"}
    ),
    **Library(jsp).called(
        {
            scipy: "cho_factor; cholesky; lu; qr; svd",
            factors: "lu_factor",
            __name__: "cho_solve; expm; lu_solve; scipy_eigh: eigh; solve; solve_triangular",
            xp: "det; inv",
        }
    ),
    **Library(jax.lax.linalg).called(
        {
            __name__: """
                lax_cholesky: cholesky; lax_eigh: eigh; lax_lu: lu; lax_qr: qr; lax_svd: svd;
                triangular_solve
            """,
        }
    ),
}
