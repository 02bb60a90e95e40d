"""Torch's rows of the shape family, each function named as its op."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch

from multigrad.backend import rows_of
from multigrad.graph import ops
from multigrad.graph.ops.arrays.indexing import along, as_index, as_pairs, from_front

from .ordering import wide

Tensor: TypeAlias = torch.Tensor
Axis = int | tuple[int, ...] | None


def reshape_like(x: Tensor, like: Tensor) -> Tensor:
    return x.reshape(like.shape)


def squeeze(x: Tensor, *, axis: Axis) -> Tensor:
    if axis is None:
        return x.squeeze()
    axes = axis if isinstance(axis, tuple) else (axis,)
    if any(x.shape[i] != 1 for i in axes):  # torch leaves longer axes as they are
        raise ValueError(f"axis {axis} of a tensor of shape {tuple(x.shape)} is not of length 1")
    return x.squeeze(axes)


def permute_dims(x: Tensor, *, axes: Any) -> Tensor:
    return x.permute(tuple(reversed(range(x.ndim))) if axes is None else axes)


def swapaxes(x: Tensor, *, axis1: int, axis2: int) -> Tensor:
    return x.transpose(axis1, axis2)


def flip(x: Tensor, *, axis: Axis) -> Tensor:
    axes = tuple(range(x.ndim)) if axis is None or x.ndim == 0 else axis
    return torch.flip(x, axes if isinstance(axes, tuple) else (axes,))


def roll(x: Tensor, *, shift: Any, axis: Axis) -> Tensor:
    return torch.roll(x, shift, () if axis is None else axis) if x.ndim else x


def tril(x: Tensor, *, offset: int) -> Tensor:
    return torch.tril(x, offset)


def triu(x: Tensor, *, offset: int) -> Tensor:
    return torch.triu(x, offset)


def broadcast_to_shape(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    return torch.broadcast_to(x, shape)


def forward(index: tuple[Any, ...]) -> tuple[tuple[Any, ...], bool]:
    """Return the index, and whether every slice goes forward, as torch's must."""
    steps = [item[2] for item in index if isinstance(item, tuple)]
    return as_index(index), all(step is None or step > 0 for step in steps)


def places(x: Tensor, index: tuple[Any, ...]) -> Tensor:
    """The flat places of the elements that an index with a backward slice takes."""
    import numpy as np

    # A copy: NumPy calls one element contiguous whatever its stride, torch takes no negative one.
    flat = np.arange(math.prod(x.shape)).reshape(x.shape)[index].copy()
    return torch.as_tensor(flat, device=x.device)


def getitem(x: Tensor, *, index: tuple[Any, ...]) -> Tensor:
    item, simple = forward(index)
    return x[item] if simple else torch.take(x, places(x, item))


def setitem(x: Tensor, like: Tensor, *, index: tuple[Any, ...]) -> Tensor:
    item, simple = forward(index)
    full = x.new_zeros(like.shape)
    if simple:
        full[item] = x
        return full
    at = places(like, item).reshape(-1)
    return full.reshape(-1).index_add(0, at, x.reshape(-1)).reshape(like.shape)


def take(x: Tensor, *, indices: tuple[int, ...], axis: int) -> Tensor:
    return torch.index_select(x, axis, positive(x, indices, axis))


def positive(x: Tensor, indices: tuple[int, ...], axis: int) -> Tensor:
    """The indices counted from the front, as a tensor."""
    places = from_front(indices, x.shape[axis])
    return torch.tensor(places, dtype=torch.int64, device=x.device)


def untake(x: Tensor, like: Tensor, *, indices: tuple[int, ...], axis: int) -> Tensor:
    values = wide(x)
    full = values.new_zeros(like.shape)
    return full.index_add(axis, positive(like, indices, axis), values).to(x.dtype)


def tile(x: Tensor, *, repetitions: tuple[int, ...]) -> Tensor:
    return torch.tile(x, repetitions)


def repeat(x: Tensor, *, repeats: int, axis: int) -> Tensor:
    return torch.repeat_interleave(x, repeats, axis)


def pad(x: Tensor, *, widths: tuple[Any, ...], fill: float) -> Tensor:
    pairs = as_pairs(widths, x.ndim)
    sides = [n for pair in reversed(pairs) for n in pair]
    return torch.nn.functional.pad(x, sides, value=fill)


def concatenate(*arrays: Tensor, axis: int) -> Tensor:
    return torch.cat(arrays, axis)


def stack(*arrays: Tensor, axis: int) -> Tensor:
    return torch.stack(arrays, axis)


def part(x: Tensor, like: Tensor, start: int, *, axis: int) -> Tensor:
    return x.narrow(axis, start, like.shape[axis])


def unpart(x: Tensor, like: Tensor, start: int, *, axis: int) -> Tensor:
    full = x.new_zeros(like.shape)
    full[along(x, start, x.shape[axis], axis)] = x
    return full


OPS = {
    **rows_of(vars()),
    ops.RESHAPE: torch.reshape,
    ops.MOVEAXIS: torch.movedim,
}
NAMES = "moveaxis: moveaxis movedim"
