"""Torch's rows of linear algebra, each function named as its op; see `multigrad/ops/linalg.py`."""

from __future__ import annotations

from typing import TypeAlias

import torch

from multigrad.backend import rows_of

from .elementwise import widened
from .ordering import wide

Tensor: TypeAlias = torch.Tensor


@widened
def cholesky(x: Tensor) -> Tensor:
    return torch.linalg.cholesky(x)


def triangular_solve(a: Tensor, b: Tensor, *, lower: bool, transposed: bool, unit: bool) -> Tensor:
    a, upper = (a.mT, lower) if transposed else (a, not lower)
    result = torch.linalg.solve_triangular(wide(a), wide(b), upper=upper, unitriangular=unit)
    return result.to(b.dtype)


def solve(a: Tensor, b: Tensor) -> Tensor:
    # Right sides of one axis less count as vectors.
    if a.ndim > b.ndim:
        b = b[(None,) * (a.ndim - b.ndim)]
    return torch.linalg.solve(wide(a), wide(b)).to(b.dtype)


@widened
def inv(x: Tensor) -> Tensor:
    return torch.linalg.inv(x)


@widened
def pinv(x: Tensor, *, rtol: float, epsilons: float) -> Tensor:
    cutoff = max(rtol, epsilons * max(x.shape[-2:]) * torch.finfo(x.dtype).eps)
    return torch.linalg.pinv(x, rtol=cutoff)


@widened
def det(x: Tensor) -> Tensor:
    return torch.linalg.det(x)


@widened
def logabsdet(x: Tensor) -> Tensor:
    return torch.linalg.slogdet(x).logabsdet


@widened
def signdet(x: Tensor) -> Tensor:
    return torch.linalg.slogdet(x).sign


OPS = rows_of(vars())
