"""torch's dialect: linear algebra; see `table.py`.

`cholesky_ex` and the like return in `info` whether they succeeded, and the code may branch on it.
Here success is asserted, so that torch itself runs the code if it fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from multigrad.capture.meanings import complexes, matrices, parts, products
from multigrad.capture.name_tables import handlers
from multigrad.graph.ir.types import T
from multigrad.trace.python_protocols import note_assertion
from multigrad.trace.trace import Value
from multigrad.trace.xp import all as xp
from multigrad.trace.xp import transposes

from .schemas import TENSOR, TORCH

Tensor = Any
TYPES: Any = torch.return_types


def succeeded(x: Tensor, result: Tensor) -> Tensor:
    """Return zeros, one for each matrix, and assert that the result is finite."""
    if isinstance(result, Value) and result.trace.kind != "rule":
        note_assertion(xp.all(xp.isfinite(result)), True, RuntimeError)
    lead = () if parts.rank(x) == 2 else parts.shape_of(x)[:-2]
    return torch.zeros(lead, dtype=torch.int32)


# --- factors --------------------------------------------------------------------------------------
def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:
    factor = matrices.cholesky(A, upper)
    return TYPES.linalg_cholesky_ex((factor, succeeded(A, factor)))


def check_pivot(pivot: bool) -> None:
    if not pivot:
        raise TypeError("LU factors without pivots")


def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> Any:
    check_pivot(pivot)
    packed, pivots = matrices.lu_factor(A, 1)
    # A zero pivot makes the reciprocal infinite.
    diagonal = products.matrix_diagonal(packed)
    return TYPES.linalg_lu_factor_ex((packed, pivots, succeeded(A, xp.reciprocal(diagonal))))


def lu(A: Tensor, *, pivot: bool = True) -> Any:
    check_pivot(pivot)
    return TYPES.linalg_lu(matrices.lu(A))


def linalg_lu_solve(
    LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    places = transposes.lu_permutation(pivots - 1, LU)
    if left:
        return matrices.lu_solve(LU, places, B, adjoint)
    return matrices.turned(matrices.lu_solve(LU, places, matrices.turned(B), not adjoint))


def lu_unpack(
    LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> Any:
    if not (unpack_data and unpack_pivots):
        raise TypeError("lu_unpack of a part")
    places = transposes.lu_permutation(LU_pivots - 1, LU_data)
    matrix = xp.cast(matrices.permutation_matrix(places), T)
    return TYPES.lu_unpack((matrix, *matrices.unpacked(LU_data)))


def linalg_svd(A: Tensor, full_matrices: bool = True, *, driver: Any = None) -> Any:
    return TYPES.linalg_svd(matrices.svd(A, full_matrices))


def eigh(A: Tensor, UPLO: str = "L") -> Any:
    return TYPES.linalg_eigh(matrices.eigh(A, matrices.is_upper(UPLO)))


def linalg_qr(A: Tensor, mode: str = "reduced") -> Any:
    if mode == "r":
        raise TypeError("qr of r alone, of which torch has no gradient")
    return TYPES.linalg_qr(matrices.numpy_qr(A, mode))


# --- systems --------------------------------------------------------------------------------------
def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """Record `solve`; B holds vectors if it has one axis, or A's shape without its last axis."""
    vectors = parts.rank(B) == 1
    if not vectors and matrices.has_vectors(A, B):
        vectors = parts.shape_of(B) == parts.shape_of(A)[:-1]
    if left or vectors:
        return matrices.solve(A if left else matrices.turned(A), B, vectors)
    return matrices.solve_at_right(A, B)


def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    result = solve(A, B, left=left)
    return TYPES.linalg_solve_ex((result, succeeded(A, result)))


def solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    return matrices.solve_triangular(A, B, lower=not upper, unit=unitriangular, left=left)


# --- inverses and determinants --------------------------------------------------------------------
def inv_ex(A: Tensor, *, check_errors: bool = False) -> Any:
    inverse = xp.inv(A)
    return TYPES.linalg_inv_ex((inverse, succeeded(A, inverse)))


def pinv(
    A: Tensor, rcond: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None
) -> Tensor:
    if hermitian or atol is not None:
        raise TypeError("pinv with hermitian or atol; use rtol")
    return matrices.pinv(A, rcond if rtol is None else rtol, 1.0)


def linalg_slogdet(A: Tensor) -> Any:
    return TYPES.linalg_slogdet(xp.slogdet(A))


# Functions with one name in torch and as methods: first those of one meaning, then the others.
NAMED: dict[Any, str] = {
    __name__: "pinv: pinverse",
    matrices: "cholesky; cholesky_inverse; cholesky_solve",
    xp: "det; expm: matrix_exp; inv: inverse",
}
LINALG: dict[str, Callable[..., Any]] = {
    **handlers(
        {
            __name__: """
                cholesky_ex; solve; solve_ex; solve_triangular; inv_ex; pinv; linalg_slogdet:
                slogdet; lu_factor_ex; lu; linalg_lu_solve: lu_solve; linalg_svd: svd;
                eigh; linalg_qr: qr
            """,
        }
    ),
}
OF_TENSORS: dict[Any, Callable[..., Any]] = TENSOR.called(NAMED)
METHODS = {method.__name__: record for method, record in OF_TENSORS.items()}
ALIASES: dict[Any, Callable[..., Any]] = {
    **complexes.of_library(torch.fft),
    torch.complex: complexes.Complex,
    torch.polar: complexes.polar,
    torch.view_as_complex: complexes.view_as_complex,
    **TORCH.taking_the_same({__name__: "lu_unpack"}),
    **OF_TENSORS,
    **{getattr(torch.linalg, name): handler for name, handler in LINALG.items()},
    **TORCH.called(NAMED),
    **TORCH.called(
        {
            matrices: """
                svdvals: linalg.svdvals; cholesky: linalg.cholesky; norm: linalg.norm; vector_norm:
                linalg.vector_norm
            """,
            xp: "det: linalg.det; expm: linalg.matrix_exp; inv: linalg.inv",
        }
    ),
}
