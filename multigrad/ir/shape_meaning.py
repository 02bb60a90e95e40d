"""What each op of the shape family means, in NumPy; sums of 16-bit values accumulate in float32.

`as_index` and `as_pairs` read the attributes of indexing and padding for the backends too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .meaning import widened

Array = Any  # numpy.ndarray or a NumPy scalar


def as_index(index: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the Python index that an attribute stands for."""
    return tuple(map(_as_item, index))


def _as_item(item: Any) -> Any:
    if item == "...":
        return Ellipsis
    return slice(*item) if isinstance(item, tuple) else item


def as_pairs(widths: tuple[Any, ...], ndim: int) -> list[tuple[int, int]]:
    """Return a (before, after) pair for every axis; the last ones are given."""
    if len(widths) > ndim:
        raise ValueError(f"pad got widths of {len(widths)} axes for a tensor of {ndim}")
    return [(0, 0)] * (ndim - len(widths)) + [tuple(pair) for pair in widths]


def reshape(x: Array, *, shape: tuple[int, ...]) -> Array:
    return np.reshape(x, shape)


def reshape_like(x: Array, like: Array) -> Array:
    return np.reshape(x, np.shape(like))


def squeeze(x: Array, *, axis: Any) -> Array:
    return np.squeeze(x, axis=axis)


def permute_dims(x: Array, *, axes: Any) -> Array:
    return np.transpose(x, axes)


def swapaxes(x: Array, *, axis1: int, axis2: int) -> Array:
    return np.swapaxes(x, axis1, axis2)


def moveaxis(x: Array, *, source: Any, destination: Any) -> Array:
    return np.moveaxis(x, source, destination)


def flip(x: Array, *, axis: Any) -> Array:
    return np.flip(x, None if np.ndim(x) == 0 else axis)


def roll(x: Array, *, shift: Any, axis: Any) -> Array:
    return np.roll(x, shift, None if np.ndim(x) == 0 else axis)


def tril(x: Array, *, offset: int) -> Array:
    return np.where(_below(x, offset), x, x.dtype.type(0))


def triu(x: Array, *, offset: int) -> Array:
    return np.where(_below(x, offset - 1), x.dtype.type(0), x)


def _below(x: Array, offset: int) -> Array:
    """The mask of the elements on and below a diagonal."""
    rows, columns = x.shape[-2:]
    return np.arange(columns) - np.arange(rows)[:, None] <= offset


def broadcast_to_shape(x: Array, *, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(x, shape)


def getitem(x: Array, *, index: tuple[Any, ...]) -> Array:
    return np.asarray(x)[as_index(index)]


def setitem(x: Array, like: Array, *, index: tuple[Any, ...]) -> Array:
    full = np.zeros(np.shape(like), x.dtype)
    full[as_index(index)] = x
    return full


def take(x: Array, *, indices: tuple[int, ...], axis: int) -> Array:
    return np.take(x, np.array(indices, np.intp), axis=axis)


@widened
def untake(x: Array, like: Array, *, indices: tuple[int, ...], axis: int) -> Array:
    full = np.zeros(np.moveaxis(like, axis, 0).shape, x.dtype)
    np.add.at(full, np.array(indices, np.intp), np.moveaxis(x, axis, 0))
    return np.moveaxis(full, 0, axis)


def half(x: Array, *, axis: int, position: int) -> Array:
    if x.shape[axis] % 2:
        raise ValueError(f"axis {axis} of length {x.shape[axis]} has no halves")
    return np.split(x, 2, axis=axis)[position]


def tile(x: Array, *, repetitions: tuple[int, ...]) -> Array:
    return np.tile(x, repetitions)


@widened
def untile(x: Array, like: Array, *, repetitions: tuple[int, ...]) -> Array:
    shape = tile_shape(np.shape(like), repetitions)
    return np.sum(x.reshape(shape), axis=tuple(range(0, len(shape), 2))).reshape(np.shape(like))


def tile_shape(shape: Any, repetitions: tuple[int, ...]) -> list[Any]:
    """Return copies and lengths in turn: the shape in which tiles are apart."""
    ndim = max(len(shape), len(repetitions))
    copies = (*(1,) * (ndim - len(repetitions)), *repetitions)
    lengths = (*(1,) * (ndim - len(shape)), *shape)
    return [n for pair in zip(copies, lengths, strict=True) for n in pair]


def repeat(x: Array, *, repeats: int, axis: int) -> Array:
    return np.repeat(x, repeats, axis=axis)


@widened
def unrepeat(x: Array, like: Array, *, repeats: int, axis: int) -> Array:
    shape, axis = np.shape(like), axis % np.ndim(like)
    return np.sum(x.reshape((*shape[: axis + 1], repeats, *shape[axis + 1 :])), axis=axis + 1)


def pad(x: Array, *, widths: tuple[Any, ...], fill: float) -> Array:
    return np.pad(x, as_pairs(widths, np.ndim(x)), constant_values=x.dtype.type(fill))


def concatenate(*arrays: Array, axis: int) -> Array:
    return np.concatenate(arrays, axis=axis)


def stack(*arrays: Array, axis: int) -> Array:
    return np.stack(arrays, axis=axis)


def part(x: Array, like: Array, start: int, *, axis: int) -> Array:
    return x[along(x, start, np.shape(like)[axis], axis)]


def unpart(x: Array, like: Array, start: int, *, axis: int) -> Array:
    full = np.zeros(np.shape(like), x.dtype)
    full[along(x, start, x.shape[axis], axis)] = x
    return full


def along(x: Array, start: int, length: int, axis: int) -> tuple[slice, ...]:
    """Return the index of a stretch along one axis."""
    return (*(slice(None),) * (axis % x.ndim), slice(start, start + length))
