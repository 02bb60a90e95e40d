"""NumPy's dialect, linear algebra; see `numpy.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..tracing import xp_all as xp
from . import linalg, norms

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
    return norms.norm(x, ord, axis, keepdims)


def vector_norm(x: Tensor, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Tensor:
    return norms.vector_norm(x, ord, axis, keepdims)


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    return norms.matrix_norm(x, ord, (-2, -1), keepdims)


ROWS: dict[str, Handler] = {
    "cholesky": cholesky, "det": det, "inv": inv, "matrix_norm": matrix_norm, "norm": norm,
    "pinv": pinv, "slogdet": slogdet, "solve": solve, "vector_norm": vector_norm,
}  # fmt: skip
FUNCTIONS = {getattr(np.linalg, n): row for n, row in ROWS.items() if hasattr(np.linalg, n)}
