"""Paddle's rows of the shape family, each function named as its op.

Most kernels that move elements take 16-bit floats; those that do not are `widened`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle

from multigrad.backend import from_front, ops, rows_of

from .widening import BOOL, INT32, INT64, Tensor, is_float, rounded, wide, widened

Axis = int | tuple[int, ...] | None
indexing = ops.indexing


def axes_of(x: Tensor, axis: Axis) -> list[int]:
    """The axes given, counted from the front; None: all."""
    rank = len(x.shape)
    if axis is None or rank == 0:
        return list(range(rank))
    return [range(rank)[i] for i in (axis if isinstance(axis, tuple) else (axis,))]


@widened
def sum_over(x: Tensor, axes: list[int], keepdims: bool = False) -> Tensor:
    """The sum over some axes, which may be none."""
    return paddle.sum(x, axes, keepdim=keepdims) if axes else paddle.assign(x)


def sum_to(x: Tensor, like: Tensor) -> Tensor:
    return sum_to_shape(x, tuple(like.shape))


def sum_to_shape(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Sum over what was broadcast."""
    extra = len(x.shape) - len(shape)
    axes = [*range(extra)]
    axes += [extra + i for i, n in enumerate(shape) if n == 1 and x.shape[extra + i] != 1]
    return reshape(sum_over(x, axes), shape=shape) if axes else x


def broadcast_to(x: Tensor, like: Tensor) -> Tensor:
    return paddle.expand(x, like.shape)


def broadcast_to_shape(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    return paddle.expand(x, shape)


def expand_dims(x: Tensor, *, axis: int) -> Tensor:
    return paddle.unsqueeze(x, axis)


def dim(x: Tensor, *, axis: int) -> int:
    return x.shape[axis]


def size(x: Tensor) -> int:
    return int(np.prod(x.shape))


def reshape(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    if 0 in x.shape:  # a 0 in paddle's shapes means the axis as it was
        known = [n for n in shape if n != -1]
        whole = [0 if n == -1 and 0 not in known else max(n, 0) for n in shape]
        return nothing(x, whole)
    return paddle.reshape(x, shape)


def nothing(x: Tensor, shape: Any) -> Tensor:
    """An empty tensor that depends on x, so that it has a gradient."""
    none = 0.0 * paddle.sum(wide(x)) if is_float(x) else paddle.zeros([], x.dtype)
    return rounded((paddle.zeros(shape, none.dtype) + none), x.dtype)


def reshape_like(x: Tensor, like: Tensor) -> Tensor:
    return reshape(x, shape=tuple(like.shape))


def squeeze(x: Tensor, *, axis: Axis) -> Tensor:
    if axis is None:
        return paddle.squeeze(x)
    axes = axes_of(x, axis)
    if any(x.shape[i] != 1 for i in axes):  # paddle leaves longer axes as they are
        raise ValueError(f"axis {axis} of a tensor of shape {tuple(x.shape)} is not of length 1")
    return paddle.squeeze(x, axes)


def permute_dims(x: Tensor, *, axes: Any) -> Tensor:
    order = tuple(reversed(range(len(x.shape)))) if axes is None else axes_of(x, tuple(axes))
    return paddle.transpose(x, order)


def swapaxes(x: Tensor, *, axis1: int, axis2: int) -> Tensor:
    order = list(range(len(x.shape)))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return paddle.transpose(x, order)


def moveaxis(x: Tensor, *, source: Any, destination: Any) -> Tensor:
    return paddle.moveaxis(x, source, destination)


def moved(function: Callable[..., Tensor], x: Tensor, **attrs: Any) -> Tensor:
    """Move elements of any dtype: there are kernels for 32 and 64 bits alone."""
    if is_float(x) or x.dtype in (INT32, INT64, BOOL):
        return widened(function)(x, **attrs)
    return function(x.astype(INT32), **attrs).astype(x.dtype)


def flip(x: Tensor, *, axis: Axis) -> Tensor:
    return moved(paddle.flip, x, axis=axes_of(x, axis)) if len(x.shape) else x


def roll(x: Tensor, *, shift: Any, axis: Axis) -> Tensor:
    if len(x.shape) == 0 or x.size == 0:
        return x
    if axis is None:
        return paddle.reshape(roll(paddle.reshape(x, [-1]), shift=shift, axis=0), x.shape)
    return moved(paddle.roll, x, shifts=shift, axis=axis)


@widened
def tril(x: Tensor, *, offset: int) -> Tensor:
    return paddle.tril(x, offset)


@widened
def triu(x: Tensor, *, offset: int) -> Tensor:
    return paddle.triu(x, offset)


def places(x: Tensor, index: tuple[Any, ...]) -> Tensor:
    """The flat places of the elements that an index takes."""
    shape = tuple(x.shape)
    return paddle.to_tensor(np.arange(int(np.prod(shape))).reshape(shape)[index].copy())


def getitem(x: Tensor, *, index: tuple[Any, ...]) -> Tensor:
    at = places(x, indexing.as_index(index))
    if 0 in at.shape:
        return nothing(x, at.shape)
    flat = paddle.gather(wide(paddle.reshape(x, [-1])), paddle.reshape(at, [-1]))
    return rounded(paddle.reshape(flat, at.shape), x.dtype)


def setitem(x: Tensor, like: Tensor, *, index: tuple[Any, ...]) -> Tensor:
    at = paddle.reshape(places(like, indexing.as_index(index)), [-1])
    return paddle.reshape(add_at(paddle.reshape(x, [-1]), at, size(like), 0), like.shape)


def add_at(values: Tensor, at: Tensor, length: int, axis: int) -> Tensor:
    """Zeros along an axis, with slices of the values added at the places given."""
    shape = list(values.shape)
    shape[axis] = length
    full = paddle.zeros(shape, wide(values).dtype)
    if 0 in values.shape or 0 in shape:
        return rounded(full, values.dtype)
    return rounded(paddle.index_add(full, at, axis, wide(values)), values.dtype)


def take(x: Tensor, *, indices: tuple[int, ...], axis: int) -> Tensor:
    return take_places(x, positive(x, indices, axis), axis)


def take_places(x: Tensor, at: Tensor, axis: int) -> Tensor:
    """Slices along an axis, by a tensor of one axis."""
    if 0 in at.shape or 0 in x.shape:
        shape = list(x.shape)
        shape[axis] = at.shape[0]
        return paddle.zeros(shape, x.dtype)
    return rounded(paddle.index_select(wide(x), at, axis), x.dtype)


def positive(x: Tensor, indices: tuple[int, ...], axis: int) -> Tensor:
    """The indices counted from the front, as a tensor."""
    return paddle.to_tensor(np.array(from_front(indices, x.shape[axis]), np.int64))


def untake(x: Tensor, like: Tensor, *, indices: tuple[int, ...], axis: int) -> Tensor:
    at = positive(like, indices, axis)
    return add_at(x, at, like.shape[axis], axes_of(like, axis)[0])


def half(x: Tensor, *, axis: int, position: int) -> Tensor:
    length = x.shape[axis]
    if length % 2:
        raise ValueError(f"axis {axis} of length {length} has no halves")
    return cut(x, axis, position * length // 2, length // 2)


def cut(x: Tensor, axis: int, start: int, length: int) -> Tensor:
    """That many elements along an axis."""
    return paddle.slice(x, axes_of(x, axis), [start], [start + length])


@widened
def tile(x: Tensor, *, repetitions: tuple[int, ...]) -> Tensor:
    return paddle.tile(x, repetitions) if 0 not in repetitions else empty_tile(x, repetitions)


def empty_tile(x: Tensor, repetitions: tuple[int, ...]) -> Tensor:
    return rounded(paddle.to_tensor(np.tile(np.zeros(tuple(x.shape)), repetitions)), x.dtype)


def untile(x: Tensor, like: Tensor, *, repetitions: tuple[int, ...]) -> Tensor:
    shape = indexing.tile_shape(tuple(like.shape), repetitions)
    axes = list(range(0, len(shape), 2))
    return reshape_like(sum_over(reshape(x, shape=tuple(shape)), axes), like)


def repeat(x: Tensor, *, repeats: int, axis: int) -> Tensor:
    axis = axes_of(x, axis)[0]
    shape = [*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :]]
    whole = [*x.shape[:axis], x.shape[axis] * repeats, *x.shape[axis + 1 :]]
    return reshape(paddle.expand(paddle.unsqueeze(x, axis + 1), shape), shape=tuple(whole))


def unrepeat(x: Tensor, like: Tensor, *, repeats: int, axis: int) -> Tensor:
    shape, axis = like.shape, axes_of(like, axis)[0]
    split = reshape(x, shape=(*shape[: axis + 1], repeats, *shape[axis + 1 :]))
    return sum_over(split, [axis + 1])


def pad(x: Tensor, *, widths: tuple[Any, ...], fill: float) -> Tensor:
    for axis, (before, after) in enumerate(indexing.as_pairs(widths, len(x.shape))):
        sides = [before, after]
        shapes = [[*x.shape[:axis], n, *x.shape[axis + 1 :]] for n in sides]
        first, last = (paddle.full(shape, fill, x.dtype) for shape in shapes)
        x = concatenate(first, x, last, axis=axis) if before or after else x
    return x


def concatenate(*arrays: Tensor, axis: int) -> Tensor:
    some = [x for x in arrays if 0 not in x.shape]
    if not some:
        shape = list(arrays[0].shape)
        shape[axis] = sum(x.shape[axis] for x in arrays)
        return paddle.zeros(shape, arrays[0].dtype)
    return rounded(paddle.concat([wide(x) for x in some], axis), arrays[0].dtype)


def stack(*arrays: Tensor, axis: int) -> Tensor:
    return rounded(paddle.stack([wide(x) for x in arrays], axis), arrays[0].dtype)


def part(x: Tensor, like: Tensor, start: int, *, axis: int) -> Tensor:
    return cut(x, axis, int(start), like.shape[axis])


def unpart(x: Tensor, like: Tensor, start: int, *, axis: int) -> Tensor:
    axis = axes_of(like, axis)[0]
    after = like.shape[axis] - int(start) - x.shape[axis]
    widths = tuple((int(start), after) if i == axis else (0, 0) for i in range(len(like.shape)))
    return pad(x, widths=widths, fill=0.0)


OPS = rows_of(vars())
