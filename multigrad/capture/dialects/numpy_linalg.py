"""NumPy's dialect, linear algebra; see `numpy.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...trace.xp import all as xp
from ..code.binding import Library
from ..meanings.matrices import factors, linalg, norms

Tensor = Any
Handler = Callable[..., Any]
NOTHING = getattr(np, "_NoValue", None)


def pinv(a: Tensor, rcond: Any = None, hermitian: bool = False, *, rtol: Any = NOTHING) -> Tensor:
    """Without a cutoff, 1e-15; where `rtol` is None, an eps a row."""
    if hermitian:
        raise TypeError("pinv with hermitian")
    if rtol is not NOTHING:
        return linalg.pinv(a, rtol, 1.0)
    return linalg.pinv(a, 1e-15 if rcond is None else rcond, 1.0)


def slogdet(a: Tensor) -> Any:
    return type(np.linalg.slogdet(np.eye(1)))(*xp.slogdet(a))


def svd(
    a: Tensor, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> Any:
    if hermitian:
        raise TypeError("svd with hermitian")
    if not compute_uv:
        return factors.svdvals(a)
    return _as(np.linalg.svd, factors.svd(a, full_matrices))


def eigh(a: Tensor, UPLO: str = "L") -> Any:
    return _as(np.linalg.eigh, factors.eigh(a, factors.is_upper(UPLO)))


def eigvalsh(a: Tensor, UPLO: str = "L") -> Tensor:
    return factors.eigvalsh(a, factors.is_upper(UPLO))


def qr(a: Tensor, mode: str = "reduced") -> Any:
    results = factors.numpy_qr(a, mode)
    return results if mode == "r" else _as(np.linalg.qr, results)


def _as(function: Any, results: tuple[Tensor, ...]) -> Any:
    """Results in the named tuple of a function of NumPy."""
    return type(function(np.eye(1)))(*results)


NAMED: dict[Any, str] = {
    factors: "svdvals",
    linalg: "cholesky",
    norms: "cond; matrix_norm; norm; vector_norm",
    xp: "det; inv; solve",
}
OWN = {__name__: "eigh; eigvalsh; pinv; qr; slogdet; svd"}
NUMPY = Library(np.linalg)
FUNCTIONS = {**NUMPY.taking_the_same(OWN), **NUMPY.called(NAMED)}
