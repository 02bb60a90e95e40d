"""Torch's rows of linear algebra, each function named as its op; see
`multigrad/graph/ops/arrays/linalg.py`.
"""

from __future__ import annotations

from typing import TypeAlias

import torch

from multigrad.backend import rows_of
from multigrad.graph import ops

from .ordering import wide

Tensor: TypeAlias = torch.Tensor


def triangular_solve(a: Tensor, b: Tensor, *, lower: bool, transposed: bool, unit: bool) -> Tensor:
    a, upper = (a.mT, lower) if transposed else (a, not lower)
    return torch.linalg.solve_triangular(a, b, upper=upper, unitriangular=unit)


def solve(a: Tensor, b: Tensor) -> Tensor:
    # Right sides of one axis less count as vectors.
    if a.ndim > b.ndim:
        b = b[(None,) * (a.ndim - b.ndim)]
    return torch.linalg.solve(a, b)


def pinv(x: Tensor, *, rtol: float, epsilons: float) -> Tensor:
    cutoff = max(rtol, epsilons * max(x.shape[-2:]) * torch.finfo(x.dtype).eps)
    # Its own scales v instead of u, which rounds otherwise than NumPy's and jax's.
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    inverse = torch.where(s > cutoff * s[..., :1], 1 / s, 0)
    return vh.mT @ (inverse[..., None] * u.mT)


def logabsdet(x: Tensor) -> Tensor:
    return torch.linalg.slogdet(x).logabsdet


def signdet(x: Tensor) -> Tensor:
    return torch.linalg.slogdet(x).sign


# --- factors --------------------------------------------------------------------------------------
def lu(x: Tensor) -> Tensor:
    return torch.linalg.lu_factor_ex(x)[0]


def lu_pivots(x: Tensor) -> Tensor:
    return torch.linalg.lu_factor_ex(wide(x))[1].long() - 1


def lu_permutation(indices: Tensor, like: Tensor) -> Tensor:
    *batch, count = indices.shape
    factors = torch.empty((*batch, like.shape[-2], count), device=indices.device)
    places = torch.lu_unpack(factors, (indices + 1).int(), unpack_data=False)[0]
    rows = torch.arange(like.shape[-2], dtype=places.dtype, device=places.device)
    return (places.mT @ rows).long()


def svd(x: Tensor) -> Tensor:
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    return torch.cat((s[..., None, :], u, vh.mT), -2)


def eigh(x: Tensor, *, lower: bool) -> Tensor:
    w, v = torch.linalg.eigh(x, "L" if lower else "U")
    return torch.cat((w[..., None, :], v), -2)


def eigvalsh(x: Tensor, *, lower: bool) -> Tensor:
    return torch.linalg.eigvalsh(x, UPLO="L" if lower else "U")


def qr(x: Tensor) -> Tensor:
    return torch.linalg.qr(x)[0]


# --- spectra --------------------------------------------------------------------------------------
def fft(x: Tensor, *, axes: tuple[int, ...], inverse: bool) -> Tensor:
    whole, places = torch.view_as_complex(x.contiguous()), [axis + 1 for axis in axes]
    if inverse:
        return torch.view_as_real(torch.fft.ifftn(whole, dim=places, norm="forward"))
    return torch.view_as_real(torch.fft.fftn(whole, dim=places))


OPS = {
    **rows_of(vars()),
    ops.CHOLESKY: torch.linalg.cholesky,
    ops.INV: torch.linalg.inv,
    ops.DET: torch.linalg.det,
    ops.EXPM: torch.linalg.matrix_exp,
    ops.SVDVALS: torch.linalg.svdvals,
}
