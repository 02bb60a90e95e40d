"""What ops that move elements mean; what undoes a copy is a sum over the copies. See
`arrays.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from multigrad.core import ops
from multigrad.core.ir.op import Op

from ..bounded import Bounded, Function, as_dtype, known, monotone, narrowed, widened

Array = Any
Index = tuple[Any, ...]


def index_of(index: Index) -> Index:
    kinds = {str: lambda item: Ellipsis, tuple: lambda item: slice(*item)}
    return tuple(kinds.get(type(item), lambda item: item)(item) for item in index)


def moving(op: Op) -> Function:
    """An op of one operand whose result holds that operand's elements: its row says where."""

    def call(x: Bounded, *others: Bounded, **attrs: Any) -> Bounded:
        return x.map(lambda a, fill: op.numpy(a, *(o.value for o in others), **attrs))

    return call


def triangle(lower: bool) -> Function:
    def call(x: Bounded, offset: int) -> Bounded:
        rows, columns = x.shape[-2:]
        below = np.tri(rows, columns, offset if lower else offset - 1) > 0
        kept = below if lower else ~below
        return x.map(lambda a, fill: np.where(kept, a, np.asarray(fill).astype(a.dtype)))

    return call


def pad(x: Bounded, widths: Any, fill: float) -> Bounded:
    pairs = [(0, 0)] * (len(x.shape) - len(widths)) + list(widths)
    border = as_dtype(known(np.asarray(fill, x.dtype)), x.dtype)

    def move(a: Array, nothing: Any) -> Array:
        return np.pad(a, pairs, constant_values=nothing)

    padded = x.map(move)
    inside = np.pad(np.ones(x.shape, bool), pairs)
    return Bounded(
        np.where(inside, padded.value, border.value), padded.error, x.dtype, padded.signed
    )


def setitem(x: Bounded, like: Bounded, index: Index) -> Bounded:
    def move(a: Array, fill: Any) -> Array:
        full = np.full(like.shape, fill, a.dtype)
        full[index_of(index)] = a
        return full

    # Where the elements are added to zeros, -0 becomes 0.
    negative = np.signbit(x.value) & (x.value == 0)
    signed = np.asarray(x.signed) & ~negative
    return Bounded(x.value, x.error, x.dtype, signed, x.weak).map(move)


def put(x: Bounded, value: Bounded, index: Index) -> Bounded:
    def written(name: str) -> Array:
        full = np.broadcast_to(getattr(x, name), x.shape).copy()
        full[index_of(index)] = getattr(held, name)
        return full

    held = as_dtype(value, x.dtype)
    return Bounded(written("value"), written("error"), x.dtype, written("signed"))


def stretch(x: Bounded, start: int, length: int, axis: int) -> tuple[slice, ...]:
    return (*(slice(None),) * (axis % len(x.shape)), slice(start, start + length))


def part(x: Bounded, like: Bounded, start: Bounded, axis: int) -> Bounded:
    at = stretch(x, int(start.value), like.shape[axis], axis)
    return x.map(lambda a, fill: a[at])


def unpart(x: Bounded, like: Bounded, start: Bounded, axis: int) -> Bounded:
    at = stretch(x, int(start.value), x.shape[axis], axis)

    def move(a: Array, fill: Any) -> Array:
        full = np.full(like.shape, fill, a.dtype)
        full[at] = a
        return full

    return x.map(move)


def joining(function: Callable[..., Array]) -> Function:
    def call(*arrays: Bounded, axis: int) -> Bounded:
        parts = [
            (x.value, *(np.broadcast_to(a, x.shape) for a in (x.error, x.signed))) for x in arrays
        ]
        value, error, signed = (function(column, axis=axis) for column in zip(*parts, strict=True))
        return Bounded(value, error, arrays[0].dtype, signed)

    return call


def adding(op: Op) -> Function:
    """The sum of the copies that an op has made: it says of which element each is one."""

    def call(x: Bounded, like: Bounded, **attrs: Any) -> Bounded:
        places = np.arange(int(np.prod(like.shape))).reshape(like.shape)
        given = (x.value,) if op is ops.BROADCAST_TO else ()
        sources = op.numpy(places, *given, **attrs)

        def function(a: Array) -> Array:
            result = np.zeros(places.size)
            np.add.at(result, sources.ravel(), np.asarray(a, np.float64).ravel())
            return result.reshape(like.shape)

        def reach(mask: Array) -> Array:
            return function(mask) > 0

        copies = x.value.size / max(places.size, 1)
        return narrowed(monotone(function, widened(x), reach, 2 + copies, function), x.dtype)

    return call


MOVING = (
    ops.WINDOWS, ops.RESHAPE, ops.RESHAPE_LIKE, ops.SQUEEZE, ops.PERMUTE_DIMS, ops.SWAPAXES,
    ops.MOVEAXIS, ops.FLIP, ops.ROLL, ops.BROADCAST_TO_SHAPE, ops.BROADCAST_TO, ops.EXPAND_DIMS,
    ops.TILE, ops.REPEAT, ops.STOP_GRADIENT, ops.GETITEM, ops.TAKE, ops.HALF,
)  # fmt: skip
SHAPES: dict[str, Function] = {
    **{op.name: moving(op) for op in MOVING},
    "tril": triangle(True), "triu": triangle(False),
    "pad": pad, "put": put, "setitem": setitem, "part": part, "unpart": unpart,
    "concatenate": joining(np.concatenate), "stack": joining(np.stack),
    "unwindows": adding(ops.WINDOWS), "untake": adding(ops.TAKE), "untile": adding(ops.TILE),
    "unrepeat": adding(ops.REPEAT), "sum_to": adding(ops.BROADCAST_TO),
}  # fmt: skip
