"""JAX's dialect, linear algebra; see `capture.py`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy import linalg as jsp

from multigrad.capture import linalg, numpy_linalg, parts, scipy_linalg
from multigrad.tracing import xp_all as xp

Tensor = Any
SLOGDET = type(jnp.linalg.slogdet(jnp.eye(1)))


# --- jax.numpy.linalg -----------------------------------------------------------------------------
def cholesky(a: Tensor, *, upper: bool = False, symmetrize_input: bool = True) -> Tensor:
    return linalg.cholesky(linalg.symmetric(a) if symmetrize_input else a, upper)


def pinv(a: Tensor, rtol: Any = None, hermitian: bool = False, *, rcond: Any = None) -> Tensor:
    if hermitian:
        raise TypeError("pinv with hermitian")
    return linalg.pinv(a, rcond if rtol is None else rtol, 10.0)


def slogdet(a: Tensor, *, method: str | None = None) -> Any:
    return SLOGDET(*xp.slogdet(a))


# --- jax.scipy.linalg -----------------------------------------------------------------------------
def cho_solve(c_and_lower: tuple[Tensor, bool], b: Tensor, overwrite_b: bool = False,
              check_finite: bool = True) -> Tensor:  # fmt: skip
    factor, lower = c_and_lower
    if parts.rank(b) != 1 and linalg.has_vectors(factor, b):
        raise TypeError("cho_solve of a batch of vectors; use cho_solve(c, b[..., None])")
    return linalg.cholesky_solve(b, factor, not lower)


def solve_triangular(
    a: Tensor, b: Tensor, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False,
    overwrite_b: bool = False, debug: Any = None, check_finite: bool = True,
) -> Tensor:  # fmt: skip
    if parts.rank(b) != 1 and linalg.has_vectors(a, b):
        raise TypeError("solve_triangular of a batch of vectors; use b[..., None]")
    return scipy_linalg.solve_triangular(a, b, trans, lower, unit_diagonal)


def solve(
    a: Tensor, b: Tensor, lower: bool = False, overwrite_a: bool = False, overwrite_b: bool = False,
    debug: bool = False, check_finite: bool = True, assume_a: str = "gen",
) -> Tensor:  # fmt: skip
    """But for "pos" it solves in general."""
    return linalg.scipy_solve(a, b, lower, assume_a if assume_a == "pos" else "gen", False)


def det(a: Tensor, overwrite_a: bool = False, check_finite: bool = True) -> Tensor:
    return xp.det(a)


def inv(a: Tensor, overwrite_a: bool = False, check_finite: bool = True) -> Tensor:
    return xp.inv(a)


# --- jax.lax.linalg -------------------------------------------------------------------------------
def lax_cholesky(x: Tensor, *, symmetrize_input: bool = True) -> Tensor:
    return xp.cholesky(linalg.symmetric(x) if symmetrize_input else x)


def triangular_solve(
    a: Tensor, b: Tensor, *, left_side: bool = False, lower: bool = False,
    transpose_a: bool = False, conjugate_a: bool = False, unit_diagonal: bool = False,
) -> Tensor:  # fmt: skip
    vectors = linalg.has_vectors(a, b)
    return linalg.solve_triangular(
        a, b, lower=lower, transposed=transpose_a != (vectors and not left_side),
        unit=unit_diagonal, left=left_side or vectors, vectors=vectors,
    )  # fmt: skip


ALIASES: dict[Any, Any] = {
    **{getattr(jnp.linalg, name): handler for name, handler in numpy_linalg.ROWS.items()},
    jnp.linalg.cholesky: cholesky, jnp.linalg.pinv: pinv, jnp.linalg.slogdet: slogdet,
    jsp.cholesky: scipy_linalg.scipy_cholesky, jsp.cho_factor: scipy_linalg.cho_factor,
    jsp.cho_solve: cho_solve, jsp.solve_triangular: solve_triangular, jsp.solve: solve,
    jsp.det: det, jsp.inv: inv, jax.lax.linalg.cholesky: lax_cholesky,
    jax.lax.linalg.triangular_solve: triangular_solve,
}  # fmt: skip
