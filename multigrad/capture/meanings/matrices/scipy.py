"""SciPy's linear algebra, known once the rule's author has imported `scipy.linalg`, which offers no
protocol: stand-ins hand it symbols.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from ....trace.xp import all as xp
from ...code.table import record_call
from ..parts import block_diag
from . import factors, linalg

Tensor = Any
Handler = Callable[..., Any]
MODULE = "scipy.linalg"


def scipy_cholesky(a: Tensor, lower: bool = False, overwrite_a: bool = False,
                   check_finite: bool = True) -> Tensor:  # fmt: skip
    return linalg.cholesky(a, not lower)


def cho_factor(a: Tensor, lower: bool = False, overwrite_a: bool = False,
               check_finite: bool = True) -> tuple[Tensor, bool]:  # fmt: skip
    return linalg.cholesky(a, not lower), lower


def cho_solve(c_and_lower: tuple[Tensor, bool], b: Tensor, overwrite_b: bool = False,
              check_finite: bool = True) -> Tensor:  # fmt: skip
    factor, lower = c_and_lower
    return linalg.cholesky_solve(b, factor, not lower)


def solve_triangular(
    a: Tensor, b: Tensor, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False,
    overwrite_b: bool = False, check_finite: bool = True,
) -> Tensor:  # fmt: skip
    return xp.solve_triangular(
        a, b, lower=lower, transposed=linalg.is_transposed(trans), unit_diagonal=unit_diagonal
    )


def scipy_solve(
    a: Tensor, b: Tensor, lower: bool = False, overwrite_a: bool = False, overwrite_b: bool = False,
    check_finite: bool = True, assume_a: Any = None, transposed: bool = False,
) -> Tensor:  # fmt: skip
    return linalg.scipy_solve(a, b, lower, assume_a, transposed)


def scipy_inv(a: Tensor, overwrite_a: bool = False, check_finite: bool = True, *,
              assume_a: Any = None, lower: bool = False) -> Tensor:  # fmt: skip
    if assume_a not in (None, "gen", "general"):
        raise TypeError(f"inv with assume_a={assume_a!r}; 'gen' is known")
    return xp.inv(a)


def scipy_det(a: Tensor, overwrite_a: bool = False, check_finite: bool = True) -> Tensor:
    return xp.det(a)


def scipy_pinv(a: Tensor, *, atol: Any = None, rtol: Any = None, return_rank: bool = False,
               check_finite: bool = True) -> Tensor:  # fmt: skip
    if atol is not None or return_rank:
        raise TypeError("pinv with atol or return_rank; use rtol")
    return linalg.pinv(a, rtol, 1.0)


def scipy_norm(a: Tensor, ord: Any = None, axis: Any = None, keepdims: bool = False,
               check_finite: bool = True) -> Tensor:  # fmt: skip
    return factors.norm(a, ord, axis, keepdims)


def lu_factor(a: Tensor, overwrite_a: bool = False,
              check_finite: bool = True) -> tuple[Tensor, Tensor]:  # fmt: skip
    return factors.lu_factor(a)


def lu_solve(lu_and_piv: tuple[Tensor, Tensor], b: Tensor, trans: int = 0,
             overwrite_b: bool = False, check_finite: bool = True) -> Tensor:  # fmt: skip
    packed, pivots = lu_and_piv
    return factors.lu_solve_of(packed, pivots, b, linalg.is_transposed(trans))


def scipy_lu(a: Tensor, permute_l: bool = False, overwrite_a: bool = False,
             check_finite: bool = True, p_indices: bool = False) -> Any:  # fmt: skip
    if p_indices and not permute_l:
        raise TypeError("lu with p_indices")
    p, lower, upper = factors.lu(a)
    return (xp.matmul(p, lower), upper) if permute_l else (p, lower, upper)


def scipy_svd(a: Tensor, full_matrices: bool = True, compute_uv: bool = True,
              overwrite_a: bool = False, check_finite: bool = True,
              lapack_driver: str = "gesdd") -> Any:  # fmt: skip
    return factors.svd(a, full_matrices) if compute_uv else factors.svdvals(a)


def scipy_svdvals(a: Tensor, overwrite_a: bool = False, check_finite: bool = True) -> Tensor:
    return factors.svdvals(a)


def scipy_eigh(
    a: Tensor, b: Any = None, *, lower: bool = True, eigvals_only: bool = False,
    overwrite_a: bool = False, overwrite_b: bool = False, type: int = 1, check_finite: bool = True,
    subset_by_index: Any = None, subset_by_value: Any = None, driver: Any = None,
) -> Any:  # fmt: skip
    if any(each is not None for each in (b, subset_by_index, subset_by_value)):
        raise TypeError("eigh with b or a subset")
    values, vectors = factors.eigh(a, not lower)
    return values if eigvals_only else (values, vectors)


def scipy_eigvalsh(
    a: Tensor, b: Any = None, *, lower: bool = True, overwrite_a: bool = False,
    overwrite_b: bool = False, type: int = 1, check_finite: bool = True,
    subset_by_index: Any = None, subset_by_value: Any = None, driver: Any = None,
) -> Tensor:  # fmt: skip
    return scipy_eigh(
        a, b, lower=lower, eigvals_only=True, subset_by_index=subset_by_index,
        subset_by_value=subset_by_value,
    )  # fmt: skip


def scipy_qr(a: Tensor, overwrite_a: bool = False, lwork: Any = None, mode: str = "full",
             pivoting: bool = False, check_finite: bool = True) -> Any:  # fmt: skip
    """Without `economic`, q is square; of r alone, so is what stands below it."""
    if pivoting or mode not in ("full", "economic", "r"):
        raise TypeError("qr with pivoting or another mode; 'economic' is known")
    q, r = factors.qr(a, mode != "economic")
    return (r,) if mode == "r" else (q, r)


SCIPY: dict[str, Handler] = {
    "block_diag": block_diag, "cho_factor": cho_factor, "cho_solve": cho_solve,
    "cholesky": scipy_cholesky, "det": scipy_det, "inv": scipy_inv, "norm": scipy_norm,
    "eigh": scipy_eigh, "eigvalsh": scipy_eigvalsh, "lu": scipy_lu, "lu_factor": lu_factor,
    "lu_solve": lu_solve, "pinv": scipy_pinv, "qr": scipy_qr, "solve": scipy_solve,
    "solve_triangular": solve_triangular, "svd": scipy_svd, "svdvals": scipy_svdvals,
}  # fmt: skip


def imported() -> tuple[str, ...]:
    """Return the name of SciPy once that is so."""
    return (MODULE.partition(".")[0],) if MODULE in sys.modules else ()


def functions() -> dict[Any, Handler]:
    """Return SciPy's functions and what they record, once they are imported."""
    room = sys.modules.get(MODULE)
    found = {name: getattr(room, name, None) for name in SCIPY}
    return {function: SCIPY[name] for name, function in found.items() if function is not None}


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
