"""The part of a distributed tensor's draw that falls to this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch

from multigrad.errors import GradientError
from multigrad.graph import random as core

from ..versions import DTENSORS

Tensor: TypeAlias = Any


class OwnKey(NamedTuple):
    """A key drawn from the generator of this process: another process has another one."""

    first: int
    second: int


def draw_part(draw: Callable[..., Tensor], key: Tensor, x: Tensor) -> Tensor:
    """Draw for a DTensor what one process would: each process its part.

    Raises:
        GradientError: x's local tensor has not the shape that its placements give it.
    """
    tensors = sys.modules[DTENSORS]
    DTensor, Replicate, Shard = tensors.DTensor, tensors.Replicate, tensors.Shard

    mesh = x.device_mesh
    if mesh.size() > 1 and (isinstance(key, OwnKey) or not isinstance(key, tuple)):
        key = agree(key, x)
    placements = [Replicate() if each.is_partial() else each for each in x.placements]
    if any(type(each) not in (Replicate, Shard) for each in placements):  # strided
        whole = draw(key, x.shape, x.dtype, x.device)
        everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
        return everywhere.redistribute(mesh, placements)
    local = x.to_local()
    if mesh.get_coordinate() is not None and any(each.is_shard() for each in placements):
        starts, lengths = find_part(x, placements)
        if tuple(local.shape) != lengths:
            raise GradientError(
                f"a random rule cannot draw for a tensor of shape {tuple(x.shape)} placed as "
                f"{x.placements} over {tuple(mesh.shape)} processes, of which this one has "
                f"{tuple(local.shape)}, not {lengths} as by torch.chunk: distribute it by "
                "torch.distributed.tensor.distribute_tensor first"
            )
        key = core.place(key, starts, x.shape)
    drawn = draw(key, local.shape, x.dtype, x.device)
    return DTensor.from_local(
        drawn, mesh, placements, run_check=False, shape=x.shape, stride=contiguous(x.shape)
    )


def find_part(x: Tensor, placements: list[Any]) -> tuple[list[int], tuple[int, ...]]:
    """Return where the local tensor starts along each dimension, and its shape: from left to right,
    each placement chunks what those before it have left.
    """
    starts, lengths = [0] * x.ndim, [*x.shape]
    mesh = x.device_mesh
    for coordinate, size, placement in zip(
        mesh.get_coordinate(), mesh.shape, placements, strict=True
    ):
        if placement.is_shard():
            dim, length = placement.dim, lengths[placement.dim]
            chunk = -(-length // size)
            start = min(coordinate * chunk, length)
            starts[dim] += start
            lengths[dim] = min(chunk, length - start)
    return starts, tuple(lengths)


def agree(key: Tensor, x: Tensor) -> Tensor:
    """Return one process's key everywhere: a key from torch's own generator differs."""
    tensors = sys.modules[DTENSORS]
    DTensor, Replicate = tensors.DTensor, tensors.Replicate

    words = torch.tensor(key, dtype=torch.int64) if isinstance(key, tuple) else key
    everywhere = [Replicate()] * x.device_mesh.ndim
    same = DTensor.from_local(words.to(x.device), x.device_mesh, everywhere, run_check=True)
    return same.to_local()


def contiguous(shape: Any) -> tuple[int, ...]:
    return tuple(core.strides(shape))
