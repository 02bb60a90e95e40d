"""Torch's dialect, array family: of torch, torch.special, torch.linalg and torch.nn.functional."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from multigrad.capture.code.binding import reflected
from multigrad.capture.meanings import arrays, places
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


def cat(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    return xp.concatenate(tensors, dim if axis is None else axis)


def einsum(equation: str, *operands: Any) -> Tensor:
    given = (
        operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    )
    return xp.einsum(equation, *given)


AS_METHODS = "count_nonzero logsumexp repeat_interleave roll select t tril triu"
METHODS = {"logcumsumexp": xp.logcumsumexp}
ALIASES: dict[Any, Callable[..., Any]] = {
    **TORCH.called(
        {
            arrays: "reshape; expand: broadcast_to",
            places: "sort",
            xp: "glu: F.glu; stack; permute_dims: permute; flip; tile; logcumsumexp",
        }
    ),
    **TENSOR.called({places: "sort"}),
    **TORCH.taking_the_same(
        {
            arrays: """
                cumprod; cumsum; narrow; log_softmax: special.log_softmax; quantile; ravel; softmax:
                special.softmax; squeeze
            """,
            places: """
                kthvalue; topk; F.embedding; F.one_hot; argmax; argmin; argsort; gather; index_add;
                index_copy; index_fill; index_select; scatter; scatter_add; take_along_dim
            """,
            __name__: """
                cat: cat concat concatenate; einsum; log_softmax: log_softmax F.log_softmax;
                softmax: softmax F.softmax
            """,
        }
    ),
    **{getattr(torch, name): arrays.METHODS[name] for name in AS_METHODS.split()},
    torch.special.logsumexp: arrays.METHODS["logsumexp"],
    torch.Tensor.__rmatmul__: reflected(xp.matmul),
    torch.Tensor.repeat: arrays.tile,
}
