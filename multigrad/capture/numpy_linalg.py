"""NumPy's dialect, linear algebra; see `numpy.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..tracing import xp_all as xp
from . import factors, linalg, norms

Tensor = Any
Handler = Callable[..., Any]
NOTHING = getattr(np, "_NoValue", None)


def cholesky(a: Tensor, /, *, upper: bool = False) -> Tensor:
    return linalg.cholesky(a, upper)


def solve(a: Tensor, b: Tensor) -> Tensor:
    return xp.solve(a, b)


def inv(a: Tensor) -> Tensor:
    return xp.inv(a)


def pinv(a: Tensor, rcond: Any = None, hermitian: bool = False, *, rtol: Any = NOTHING) -> Tensor:
    """Without a cutoff, 1e-15; where `rtol` is None, an eps a row."""
    if hermitian:
        raise TypeError("pinv with hermitian")
    if rtol is not NOTHING:
        return linalg.pinv(a, rtol, 1.0)
    return linalg.pinv(a, 1e-15 if rcond is None else rcond, 1.0)


def det(a: Tensor) -> Tensor:
    return xp.det(a)


def slogdet(a: Tensor) -> Any:
    return type(np.linalg.slogdet(np.eye(1)))(*xp.slogdet(a))


def norm(x: Tensor, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Tensor:
    return factors.norm(x, ord, axis, keepdims)


def vector_norm(x: Tensor, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Tensor:
    return norms.vector_norm(x, ord, axis, keepdims)


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    return factors.matrix_norm(x, ord, (-2, -1), keepdims)


def svd(a: Tensor, full_matrices: bool = True, compute_uv: bool = True,
        hermitian: bool = False) -> Any:  # fmt: skip
    if hermitian:
        raise TypeError("svd with hermitian")
    if not compute_uv:
        return factors.svdvals(a)
    return _as(np.linalg.svd, factors.svd(a, full_matrices))


def svdvals(x: Tensor, /) -> Tensor:
    return factors.svdvals(x)


def eigh(a: Tensor, UPLO: str = "L") -> Any:
    return _as(np.linalg.eigh, factors.eigh(a, factors.is_upper(UPLO)))


def eigvalsh(a: Tensor, UPLO: str = "L") -> Tensor:
    return factors.eigvalsh(a, factors.is_upper(UPLO))


def qr(a: Tensor, mode: str = "reduced") -> Any:
    results = factors.numpy_qr(a, mode)
    return results if mode == "r" else _as(np.linalg.qr, results)


def cond(x: Tensor, p: Any = None) -> Tensor:
    return factors.cond(x, p)


def _as(function: Any, results: tuple[Tensor, ...]) -> Any:
    """Results in the named tuple of a function of NumPy."""
    return type(function(np.eye(1)))(*results)


ROWS: dict[str, Handler] = {
    "cholesky": cholesky, "cond": cond, "det": det, "eigh": eigh, "eigvalsh": eigvalsh, "inv": inv,
    "matrix_norm": matrix_norm, "norm": norm, "pinv": pinv, "qr": qr, "slogdet": slogdet,
    "solve": solve, "svd": svd, "svdvals": svdvals, "vector_norm": vector_norm,
}  # fmt: skip
FUNCTIONS = {getattr(np.linalg, n): row for n, row in ROWS.items() if hasattr(np.linalg, n)}
