"""Torch's dialect, array family: of torch, torch.special, torch.linalg and torch.nn.functional."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from multigrad.capture.meanings import arrays, extremes, places
from multigrad.trace.xp import all as xp

from ..schemas import TENSOR, TORCH

Tensor = Any


def softmax(input: Tensor, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    if dim is None:
        raise TypeError("softmax without a dim")
    return arrays.softmax(input, dim, dtype)


def log_softmax(input: Tensor, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    if dim is None:
        raise TypeError("log_softmax without a dim")
    return arrays.log_softmax(input, dim, dtype)


def softmin(input: Tensor, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    return softmax(-input, dim, dtype=dtype)


def cat(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    return xp.concatenate(tensors, dim if axis is None else axis)


def einsum(equation: str, *operands: Any) -> Tensor:
    given = (
        operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    )
    return xp.einsum(equation, *given)


def reversed_matmul(b: Tensor, a: Any) -> Tensor:
    return xp.matmul(a, b)


METHODS = {"logcumsumexp": xp.logcumsumexp}
ALIASES: dict[Any, Callable[..., Any]] = {
    **TORCH.called({
        arrays: "reshape; expand: broadcast_to",
        extremes: "sort",
        xp: "glu: F.glu; stack; permute_dims: permute; flip; tile; take; logcumsumexp",
    }),
    **TENSOR.called({extremes: "sort"}),
    torch.cat: cat, torch.concat: cat, torch.concatenate: cat,
    torch.count_nonzero: arrays.count_nonzero, torch.cumprod: arrays.cumprod,
    torch.cumsum: arrays.cumsum, torch.einsum: einsum,
    torch.index_select: places.index_select,
    torch.log_softmax: log_softmax, F.log_softmax: log_softmax, torch.logsumexp: arrays.logsumexp,
    torch.special.logsumexp: arrays.logsumexp,
    torch.special.softmax: arrays.softmax, torch.special.log_softmax: arrays.log_softmax,
    torch.narrow: arrays.narrow, 
    torch.quantile: arrays.quantile,
    torch.ravel: arrays.ravel, torch.repeat_interleave: arrays.repeat_interleave,
    torch.roll: arrays.roll, torch.select: arrays.select,
    torch.softmax: softmax, F.softmax: softmax, F.softmin: softmin,
    torch.squeeze: arrays.squeeze,
    torch.t: arrays.transpose_2d, torch.topk: extremes.topk,
    torch.tril: arrays.tril, torch.triu: arrays.triu,
    torch.argmax: places.argmax, torch.argmin: places.argmin, torch.argsort: places.argsort,
    torch.gather: places.gather, torch.index_add: places.index_add,
    torch.index_copy: places.index_copy, torch.index_fill: places.index_fill,
    torch.kthvalue: extremes.kthvalue, torch.scatter: places.scatter,
    torch.scatter_add: places.scatter_add,
    torch.take_along_dim: places.take_along_dim, F.one_hot: places.one_hot,
    F.embedding: places.embedding, torch.Tensor.__rmatmul__: reversed_matmul,
    torch.Tensor.repeat: arrays.tile,
}  # fmt: skip
