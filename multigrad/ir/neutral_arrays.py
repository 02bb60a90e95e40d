"""The neutral dialect, array family; see `neutral.py`."""

from __future__ import annotations

from math import prod
from typing import Any

from . import ops
from .record import Value, apply, constant, known_shape

Axis = int | tuple[int, ...] | list[int] | None
Tensor = Any

__all__ = [
    "all", "any", "broadcast_to", "dim", "expand_dims", "max", "mean", "min", "norm",
    "rand_like", "randn_like", "size", "std", "sum", "sum_to", "var",
]  # fmt: skip


def _axes(axis: Axis) -> int | tuple[int, ...] | None:
    return tuple(axis) if isinstance(axis, list) else axis


def sum(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return apply(ops.SUM, x, axis=_axes(axis), keepdims=bool(keepdims))


def mean(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return apply(ops.MEAN, x, axis=_axes(axis), keepdims=bool(keepdims))


def max(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return apply(ops.MAX, x, axis=_axes(axis), keepdims=bool(keepdims))


def min(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return apply(ops.MIN, x, axis=_axes(axis), keepdims=bool(keepdims))


def any(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return apply(ops.ANY, x, axis=_axes(axis), keepdims=bool(keepdims))


def all(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return apply(ops.ALL, x, axis=_axes(axis), keepdims=bool(keepdims))


def norm(x: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The Euclidean norm, over all axes by default."""
    return apply(ops.NORM, x, axis=_axes(axis), keepdims=bool(keepdims))


def var(x: Tensor, axis: Axis = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    return apply(ops.VAR, x, axis=_axes(axis), keepdims=bool(keepdims), correction=correction)


def std(x: Tensor, axis: Axis = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    return apply(ops.STD, x, axis=_axes(axis), keepdims=bool(keepdims), correction=correction)


def sum_to(x: Tensor, like: Tensor) -> Tensor:
    """x summed to the shape of `like`: undoes broadcasting."""
    return apply(ops.SUM_TO, x, like)


def broadcast_to(x: Tensor, like: Tensor) -> Tensor:
    """x repeated to the shape of `like`."""
    return apply(ops.BROADCAST_TO, x, like)


def expand_dims(x: Tensor, axis: int = 0) -> Tensor:
    return apply(ops.EXPAND_DIMS, x, axis=axis)


def dim(x: Tensor, axis: int) -> Any:
    """The length of one axis, known at run time."""
    known = known_shape(x)
    return apply(ops.DIM, x, axis=axis) if known is None else x.trace.value(constant(known[axis]))


def size(x: Tensor) -> Any:
    """The number of elements, known at run time."""
    known = known_shape(x)
    return apply(ops.SIZE, x) if known is None else x.trace.value(constant(prod(known)))


def rand_like(x: Tensor, key: Any = None) -> Tensor:
    """Uniform on [0, 1), of x's shape and dtype; in a rule each draw takes the next key."""
    return apply(ops.UNIFORM_LIKE, _draw_key(x, key), x)


def randn_like(x: Tensor, key: Any = None) -> Tensor:
    """Standard normal, of x's shape and dtype; in a rule each draw takes the next key."""
    return apply(ops.NORMAL_LIKE, _draw_key(x, key), x)


def _draw_key(x: Tensor, key: Any) -> Any:
    if key is None and isinstance(x, Value):
        return x.trace.next_key()
    return key
