"""The functions that only VJPs call: each undoes, or goes along with, an op of the table. Not part of `xg.xp`."""

from __future__ import annotations

from typing import Any

from . import ops
from .record import apply

Tensor = Any

__all__ = [
    "half", "hold", "item", "matmul_left", "matmul_right", "part", "quantile_weights", "setitem",
    "sort_like", "unhold", "unpart", "unrepeat", "unsort", "untake", "untile",
]  # fmt: skip


def hold(x: Tensor, mask: Tensor, axis: int) -> Tensor:
    return apply(ops.HOLD, x, mask, axis=axis)


def unhold(x: Tensor, mask: Tensor, axis: int) -> Tensor:
    return apply(ops.UNHOLD, x, mask, axis=axis)


def sort_like(values: Tensor, x: Tensor, axis: int, descending: bool) -> Tensor:
    return apply(ops.SORT_LIKE, values, x, axis=axis, descending=descending)


def unsort(values: Tensor, x: Tensor, axis: int, descending: bool) -> Tensor:
    return apply(ops.UNSORT, values, x, axis=axis, descending=descending)


def quantile_weights(x: Tensor, q: float, axis: Any) -> Tensor:
    return apply(ops.QUANTILE_WEIGHTS, x, axis=axis, q=q)


def item(x: Tensor, index: Any) -> Tensor:
    """`x[index]`, the index as the attribute holds it."""
    return apply(ops.GETITEM, x, index=index)


def setitem(x: Tensor, like: Tensor, index: Any) -> Tensor:
    return apply(ops.SETITEM, x, like, index=index)


def untake(x: Tensor, like: Tensor, indices: Any, axis: int) -> Tensor:
    return apply(ops.UNTAKE, x, like, indices=indices, axis=axis)


def half(x: Tensor, position: int, axis: int) -> Tensor:
    return apply(ops.HALF, x, axis=axis, position=position)


def untile(x: Tensor, like: Tensor, repetitions: Any) -> Tensor:
    return apply(ops.UNTILE, x, like, repetitions=repetitions)


def unrepeat(x: Tensor, like: Tensor, repeats: int, axis: int) -> Tensor:
    return apply(ops.UNREPEAT, x, like, repeats=repeats, axis=axis)


def part(x: Tensor, like: Tensor, start: Any, axis: int) -> Tensor:
    return apply(ops.PART, x, like, start, axis=axis)


def unpart(x: Tensor, like: Tensor, start: Any, axis: int) -> Tensor:
    return apply(ops.UNPART, x, like, start, axis=axis)


def matmul_left(cotangent: Tensor, b: Tensor, like: Tensor) -> Tensor:
    return apply(ops.MATMUL_LEFT, cotangent, b, like)


def matmul_right(a: Tensor, cotangent: Tensor, like: Tensor) -> Tensor:
    return apply(ops.MATMUL_RIGHT, a, cotangent, like)
