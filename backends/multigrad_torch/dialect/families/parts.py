"""Torch's dialect, parts, diagonals, neighbors and products; see `table.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from multigrad.capture.dialects import numpy as np_dialect
from multigrad.capture.meanings import composites, parts, products, reductions
from multigrad.trace.trace import copy_of
from multigrad.trace.xp import all as xp

from ..schemas import TENSOR, TORCH

Tensor = Any
_T = torch.Tensor


# --- parts ----------------------------------------------------------------------------------------
def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most so many parts, all but the last of one length."""
    return parts.pieces_of(input, max(-(-parts.length(input, dim) // chunks), 1), dim)


def split(tensor: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of one length, or of those given."""
    if isinstance(split_size_or_sections, Sequence):
        return parts.pieces(tensor, split_size_or_sections, dim)
    return parts.pieces_of(tensor, split_size_or_sections, dim)


def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    return parts.broadcast_arrays(*_given(tensors))


def _given(tensors: tuple[Any, ...]) -> Sequence[Tensor]:
    """Return tensors given one by one or as one sequence."""
    return tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors


# --- neighbors ------------------------------------------------------------------------------------
def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Tensor:
    """`pad` lists (before, after) from the last axis on; a negative number cuts."""
    if mode != "constant":
        raise TypeError(f"pad in mode {mode!r} of these shapes")
    if len(pad) % 2:
        raise TypeError(f"pad takes pairs, not {len(pad)} numbers")
    if not pad:
        return copy_of(input)
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    fill = 0.0 if value is None else value
    return parts.padded(input, tuple(reversed(pairs)), fill=fill)


# --- products -------------------------------------------------------------------------------------
def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return products.added(input, xp.matmul(mat1, mat2), beta, alpha)


def addbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    return products.added(input, xp.sum(xp.matmul(batch1, batch2), 0), beta, alpha)


def cov(
    input: Tensor, *, correction: int = 1, fweights: Any = None, aweights: Any = None
) -> Tensor:
    if fweights is not None or aweights is not None:
        raise TypeError("cov with weights")
    return products.covariance(input, correction)


# --- reductions -----------------------------------------------------------------------------------
def var_mean(
    input: Tensor,
    dim: Any = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: Any = None,
) -> tuple[Tensor, Tensor]:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    measured = reductions.var(input, dim, keepdim, unbiased=unbiased, correction=correction)
    return measured, xp.mean(input, dim, keepdim)


# Under one name in torch and among its tensors' methods: what means the same, and what does not.
NAMED: dict[Any, str] = {
    composites: "isclose; logaddexp2",
    products: "diag(diagonal=k); diagonal; correlation: corrcoef",
    np_dialect: "round_: round",
    parts: "unstack: unbind; pieces: split_with_sizes; flatten",
    xp: "matmul: dot vdot; outer: outer ger",
}
SHARED: dict[Any, str] = {__name__: "addbmm; addmm; chunk; cov"}
OF_TENSORS: dict[Any, Callable[..., Any]] = {
    **TENSOR.taking_the_same(SHARED),
    **TENSOR.called(NAMED),
    **TENSOR.called({parts: "windows: unfold"}),
    _T.split: TENSOR.bound(_T.split, split, {"split_size": "split_size_or_sections"}),
}
METHODS = {method.__name__: record for method, record in OF_TENSORS.items()}

ALIASES: dict[Any, Callable[..., Any]] = {
    **OF_TENSORS,
    **TORCH.taking_the_same(SHARED),
    **TORCH.called(NAMED),
    **TORCH.called(
        {
            products: "diagonal: linalg.diagonal; tensordot; cross: linalg.cross",
            parts: "hstack; vstack",
            xp: "vecdot: linalg.vecdot",
        }
    ),
    **TORCH.taking_the_same({__name__: "F.pad; broadcast_tensors; functional.split; var_mean"}),
}
