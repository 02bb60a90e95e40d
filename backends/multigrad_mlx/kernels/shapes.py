"""MLX's kernels of the shape ops, each named after its op."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from multigrad.backend import along, as_index, as_pairs, from_front, rows_of

from .elementwise import accumulated

Tensor = Any
Axis = int | tuple[int, ...] | None


def axes_of(x: Tensor, axis: Axis) -> tuple[int, ...]:
    if axis is None or x.ndim == 0:
        return tuple(range(x.ndim))
    return tuple(range(x.ndim)[i] for i in (axis if isinstance(axis, tuple) else (axis,)))


def reshape(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    return mx.reshape(x, shape)


def reshape_like(x: Tensor, like: Tensor) -> Tensor:
    return mx.reshape(x, like.shape)


def squeeze(x: Tensor, *, axis: Axis) -> Tensor:
    return mx.squeeze(x, axis)


def expand_dims(x: Tensor, *, axis: int) -> Tensor:
    return mx.expand_dims(x, axis)


def permute_dims(x: Tensor, *, axes: Any) -> Tensor:
    return mx.transpose(x, axes)


def swapaxes(x: Tensor, *, axis1: int, axis2: int) -> Tensor:
    return mx.swapaxes(x, axis1, axis2)


def moveaxis(x: Tensor, *, source: Any, destination: Any) -> Tensor:
    if isinstance(source, int):
        return mx.moveaxis(x, source, destination)
    # MLX moves one axis at a time; several at once are a permutation.
    places = range(x.ndim)
    target = {places[to]: places[at] for at, to in zip(source, destination, strict=True)}
    rest = iter(i for i in places if i not in target.values())
    return mx.transpose(x, [target[i] if i in target else next(rest) for i in places])


def flip(x: Tensor, *, axis: Axis) -> Tensor:
    axes = axes_of(x, axis)
    return x[tuple(slice(None, None, -1 if i in axes else None) for i in range(x.ndim))]


def roll(x: Tensor, *, shift: Any, axis: Axis) -> Tensor:
    return mx.roll(x, shift, None if x.ndim == 0 else axis)


def tril(x: Tensor, *, offset: int) -> Tensor:
    return mx.tril(x, offset)


def triu(x: Tensor, *, offset: int) -> Tensor:
    return mx.triu(x, offset)


def broadcast_to(x: Tensor, like: Tensor) -> Tensor:
    return mx.broadcast_to(x, like.shape)


def broadcast_to_shape(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    return mx.broadcast_to(x, shape)


def sum_to(x: Tensor, like: Tensor) -> Tensor:
    lead = x.ndim - like.ndim
    ones = [lead + i for i, n in enumerate(like.shape) if n == 1 != x.shape[lead + i]]
    axes = (*range(lead), *ones)
    if not axes:
        return x
    if not x.size:
        # MLX's sum of no elements was seen not to end.
        return mx.zeros(like.shape, x.dtype)
    return mx.sum(accumulated(x), axis=axes).reshape(like.shape).astype(x.dtype)


def dim(x: Tensor, *, axis: int) -> int:
    return x.shape[axis]


def size(x: Tensor) -> int:
    return x.size


# --- parts -------------------------------------------------------------------------------------
def getitem(x: Tensor, *, index: tuple[Any, ...]) -> Tensor:
    item = as_index(index)
    check(x.shape, item)
    return x[item]


def check(shape: tuple[int, ...], item: tuple[Any, ...]) -> None:
    """Raise an error for an integer beyond its axis, where MLX would read other memory."""
    axis, after = 0, len([i for i in item if i is not None and i is not ...])
    for each in item:
        if each is ...:
            axis += len(shape) - after
        elif each is not None:
            after -= 1
            if isinstance(each, int) and not -shape[axis] <= each < shape[axis]:
                raise IndexError(f"index {each} for axis {axis} of length {shape[axis]}")
            axis += 1


def setitem(x: Tensor, like: Tensor, *, index: tuple[Any, ...]) -> Tensor:
    full = mx.zeros(like.shape, x.dtype)
    full[as_index(index)] = x
    return full


def take(x: Tensor, *, indices: tuple[int, ...], axis: int) -> Tensor:
    return mx.take(x, positive(x, indices, axis), axis)


def positive(x: Tensor, indices: tuple[int, ...], axis: int) -> Tensor:
    return mx.array(from_front(indices, x.shape[axis]), mx.int32)


def untake(x: Tensor, like: Tensor, *, indices: tuple[int, ...], axis: int) -> Tensor:
    values = mx.moveaxis(accumulated(x), axis, 0)
    full = mx.zeros((like.shape[axis], *values.shape[1:]), values.dtype)
    full = full.at[positive(like, indices, axis)].add(values) if values.size else full
    return mx.moveaxis(full, 0, axis).astype(x.dtype)


def tile(x: Tensor, *, repetitions: tuple[int, ...]) -> Tensor:
    return mx.tile(x, repetitions)


def repeat(x: Tensor, *, repeats: int, axis: int) -> Tensor:
    return mx.repeat(x, repeats, axis)


def pad(x: Tensor, *, widths: tuple[Any, ...], fill: float) -> Tensor:
    return mx.pad(x, as_pairs(widths, x.ndim), constant_values=mx.array(fill, x.dtype))


def concatenate(*arrays: Tensor, axis: int) -> Tensor:
    return mx.concatenate(arrays, axis)


def stack(*arrays: Tensor, axis: int) -> Tensor:
    return mx.stack(arrays, axis)


def part(x: Tensor, like: Tensor, start: int, *, axis: int) -> Tensor:
    return x[along(x, start, like.shape[axis], axis)]


def unpart(x: Tensor, like: Tensor, start: int, *, axis: int) -> Tensor:
    full = mx.zeros(like.shape, x.dtype)
    full[along(x, start, x.shape[axis], axis)] = x
    return full


OPS = rows_of(vars())
