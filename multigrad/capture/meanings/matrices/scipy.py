"""SciPy's linear algebra, known once the rule's author has imported `scipy.linalg`, which offers no
protocol: stand-ins hand it symbols.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ....trace.xp import all as xp
from ...code.binding import Library
from ...code.table import record_call
from .. import parts
from . import factors, linalg, norms

Tensor = Any
Handler = Callable[..., Any]
MODULE = "scipy.linalg"


def cholesky(a: Tensor, lower: bool = False) -> Tensor:
    return linalg.cholesky(a, not lower)


def cho_factor(a: Tensor, lower: bool = False) -> tuple[Tensor, bool]:
    return linalg.cholesky(a, not lower), lower


def cho_solve(c_and_lower: tuple[Tensor, bool], b: Tensor) -> Tensor:
    factor, lower = c_and_lower
    return linalg.cholesky_solve(b, factor, not lower)


def solve_triangular(
    a: Tensor, b: Tensor, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False
) -> Tensor:
    return xp.solve_triangular(
        a, b, lower=lower, transposed=linalg.is_transposed(trans), unit_diagonal=unit_diagonal
    )


def inv(a: Tensor, assume_a: Any = None, lower: bool = False) -> Tensor:
    if assume_a not in (None, "gen", "general"):
        raise TypeError(f"inv with assume_a={assume_a!r}; 'gen' is known")
    return xp.inv(a)


def pinv(a: Tensor, atol: Any = None, rtol: Any = None, return_rank: bool = False) -> Tensor:
    if atol is not None or return_rank:
        raise TypeError("pinv with atol or return_rank; use rtol")
    return linalg.pinv(a, rtol, 1.0)


def lu_solve(lu_and_piv: tuple[Tensor, Tensor], b: Tensor, trans: int = 0) -> Tensor:
    packed, pivots = lu_and_piv
    return factors.lu_solve_of(packed, pivots, b, linalg.is_transposed(trans))


def lu(a: Tensor, permute_l: bool = False, p_indices: bool = False) -> Any:
    if p_indices and not permute_l:
        raise TypeError("lu with p_indices")
    p, lower, upper = factors.lu(a)
    return (xp.matmul(p, lower), upper) if permute_l else (p, lower, upper)


def svd(a: Tensor, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    return factors.svd(a, full_matrices) if compute_uv else factors.svdvals(a)


def eigh(
    a: Tensor,
    b: Any = None,
    lower: bool = True,
    eigvals_only: bool = False,
    subset_by_index: Any = None,
    subset_by_value: Any = None,
) -> Any:
    if any(each is not None for each in (b, subset_by_index, subset_by_value)):
        raise TypeError("eigh with b or a subset")
    values, vectors = factors.eigh(a, not lower)
    return values if eigvals_only else (values, vectors)


eigvalsh = functools.partial(eigh, eigvals_only=True)


def qr(a: Tensor, mode: str = "full", pivoting: bool = False) -> Any:
    """Without `economic`, q is square; of r alone, so is what stands below it."""
    if pivoting or mode not in ("full", "economic", "r"):
        raise TypeError("qr with pivoting or another mode; 'economic' is known")
    q, r = factors.qr(a, mode != "economic")
    return (r,) if mode == "r" else (q, r)


NAMED: dict[Any, str] = {
    factors: "lu_factor; svdvals",
    linalg: "scipy_solve: solve",
    norms: "norm",
    parts: "block_diag",
    __name__: """
        cho_factor; cho_solve; cholesky; eigh; eigvalsh; inv; lu; lu_solve; pinv; qr;
        solve_triangular; svd
    """,
    xp: "det; expm",
}


def imported() -> tuple[str, ...]:
    """Return the name of SciPy once that is so."""
    return (MODULE.partition(".")[0],) if MODULE in sys.modules else ()


def functions() -> dict[Any, Handler]:
    """Return SciPy's functions and what they record, once they are imported."""
    return named_in(sys.modules[MODULE]) if MODULE in sys.modules else {}


@functools.cache
def named_in(module: ModuleType) -> dict[Any, Handler]:
    return Library(module).called(NAMED)


def stand_ins(has_symbols: Callable[..., bool]) -> dict[Any, Handler]:
    """Return what stands in for each of them.

    Args:
        has_symbols: whether symbols are among such arguments.
    """
    return {each: functools.partial(call, has_symbols, each) for each in functions()}


def call(has_symbols: Callable[..., bool], function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function; with symbols, record what it means."""
    if not has_symbols((*args, *kwargs.values())):
        return function(*args, **kwargs)
    shown = f"{MODULE}.{function.__name__}"
    return record_call("numpy", function, args, kwargs, shown=shown)
