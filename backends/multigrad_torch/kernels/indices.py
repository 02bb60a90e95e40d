"""Torch's rows of the family of places, each function named as its op."""

from __future__ import annotations

from typing import TypeAlias

import torch

from multigrad.backend import rows_of
from multigrad.graph import ops

from .ordering import order, positions, wide

Tensor: TypeAlias = torch.Tensor


def check_memory(x: Tensor, indices: Tensor) -> None:
    """Check that indices have numbers where a tensor has: torch would read any memory.

    Raises:
        RuntimeError: they are on the meta device alone.
    """
    if indices.is_meta and not x.is_meta:
        raise RuntimeError(f"indices on {indices.device} of a tensor on {x.device}")


def take_along(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    check_memory(x, indices)
    return torch.gather(x, axis, indices)


def untake_along(x: Tensor, indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    check_memory(x, indices)
    values = wide(x)
    return torch.scatter_add(values.new_zeros(like.shape), axis, indices, values).to(x.dtype)


def take_at(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    check_memory(x, indices)
    if indices.ndim == 1:
        return torch.index_select(x, axis, indices)
    axis = axis % x.ndim
    taken = torch.index_select(x, axis, indices.reshape(-1))
    return taken.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def untake_at(x: Tensor, indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    check_memory(x, indices)
    axis, values = axis % like.ndim, wide(x)
    if indices.ndim != 1:
        shape = (*like.shape[:axis], indices.numel(), *like.shape[axis + 1 :])
        values, indices = values.reshape(shape), indices.reshape(-1)
    return values.new_zeros(like.shape).index_add(axis, indices, values).to(x.dtype)


def last_put(indices: Tensor, like: Tensor, *, axis: int) -> Tensor:
    last = torch.full(like.shape, -1, dtype=torch.int64, device=indices.device)
    places = positions(indices, axis).expand(indices.shape)
    return torch.scatter_reduce(last, axis, indices, places, "amax")


OPS = {
    **rows_of(vars()),
    ops.ARGMAX: torch.argmax,
    ops.ARGMIN: torch.argmin,
    ops.ARGSORT: order,
}
