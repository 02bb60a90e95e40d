"""Keras's dialect, linear algebra; see `table.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multigrad.capture.meanings.matrices import factors, linalg, norms
from multigrad.trace.xp import all as xp

from .elementwise import KERAS

Tensor = Any
Handler = Callable[..., Any]


def solve(a: Tensor, b: Tensor) -> Tensor:
    return linalg.solve(a, b, linalg.has_vectors(a, b))


def solve_triangular(a: Tensor, b: Tensor, lower: bool = False) -> Tensor:
    return linalg.solve_triangular(a, b, lower=lower, vectors=linalg.has_vectors(a, b))


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
    **{f.__name__: f for f in (solve, solve_triangular, svd, eigh, qr)},
}
NAMED = KERAS.called(
    {
        linalg: "cholesky; cholesky_inverse",
        norms: "norm",
        xp: "det; inv; logabsdet: logdet; slogdet",
    }
)
