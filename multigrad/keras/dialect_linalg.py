"""Keras's dialect, linear algebra; see `dialect.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multigrad.capture import factors, linalg, numpy_linalg
from multigrad.tracing import xp_all as xp

Tensor = Any
Handler = Callable[..., Any]


def cholesky(x: Tensor, upper: bool = False) -> Tensor:
    return linalg.cholesky(x, upper)


def cholesky_inverse(x: Tensor, upper: bool = False) -> Tensor:
    return linalg.cholesky_inverse(x, upper)


def solve(a: Tensor, b: Tensor) -> Tensor:
    return linalg.solve(a, b, linalg.has_vectors(a, b))


def solve_triangular(a: Tensor, b: Tensor, lower: bool = False) -> Tensor:
    return linalg.solve_triangular(a, b, lower=lower, vectors=linalg.has_vectors(a, b))


def det(x: Tensor) -> Tensor:
    return xp.det(x)


def inv(x: Tensor) -> Tensor:
    return xp.inv(x)


def slogdet(x: Tensor) -> tuple[Tensor, Tensor]:
    return xp.slogdet(x)


def logdet(x: Tensor) -> Tensor:
    """NumPy's, of the determinant without its sign."""
    return xp.logabsdet(x)


def svd(x: Tensor, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    return factors.svd(x, full_matrices) if compute_uv else factors.svdvals(x)


def eigh(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of symmetric matrices; which triangle is read is its backend's."""
    return factors.eigh(linalg.symmetric(x))


def qr(x: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    if mode not in ("reduced", "complete"):
        raise TypeError(f"qr with mode={mode!r}")
    return factors.qr(x, mode == "complete")


OPS: dict[str, Handler] = {
    "norm": numpy_linalg.norm,
    **{f.__name__: f for f in (cholesky, cholesky_inverse, solve, solve_triangular)},
    **{f.__name__: f for f in (det, inv, slogdet, logdet, svd, eigh, qr)},
}
