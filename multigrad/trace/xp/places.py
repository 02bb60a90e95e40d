"""Functions of `xg.xp` that read or write at integer places; see `all.py`.

A place may count from the end, as in Python; here it is made to count from the front unless it is
known to. Of two values put at one place the last one stays. `outside` says what an index out of
range means: "refused", "inside" (zero is taken, nothing is put) or "nearest" (the first or last
element is taken and gets no gradient), each an op of its own; or "clip": the index is limited
first.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ...graph import ops
from ...graph.ir.graph import Node
from ..axes import known_shape, one_axis
from ..trace import Value, apply
from . import transposes
from .arrays import broadcast_to, dim
from .ops import equal, expand_dims, greater_equal, less, logical_and, maximum, squeeze, where
from .shapes import concatenate, getitem, integers, reshape
from .transposes import last_put, take_along, untake_along

Tensor = Any

__all__ = ["add_along_axis", "one_hot", "put_along_axis", "take", "take_along_axis"]


def take(x: Tensor, indices: Any, axis: int | None = None) -> Tensor:
    """The elements at indices along an axis (None: of x made flat).

    Examples:
        >>> xp.take(np.array([10.0, 20.0, 30.0]), np.array([2, 0]), axis=0)
        array([30., 10.])
    """
    if axis is None:
        x, axis = reshape(x, -1), 0
    if is_symbolic_tensor(indices):
        return take_at(x, indices, one_axis(x, axis))
    if np.ndim(indices) > 1:
        return take_at(x, np.asarray(indices), one_axis(x, axis))
    at = indices.tolist() if hasattr(indices, "tolist") else indices
    if any(isinstance(i, bool) for i in (at if isinstance(at, tuple | list) else [at])):
        raise TypeError("its indices are bools; use xp.where(condition, tensor, 0.0)")
    places = integers(at)
    taken = apply(ops.TAKE, x, indices=places, axis=one_axis(x, axis))
    return taken if isinstance(at, tuple | list) else squeeze(taken, axis)


def is_symbolic_tensor(indices: Any) -> bool:
    return isinstance(indices, Value) and indices.node.type.kind == "tensor"


def take_along_axis(x: Tensor, indices: Tensor, axis: int = -1) -> Tensor:
    """The elements of x at places along an axis, each row by its own; as long as x elsewhere.

    Examples:
        >>> xp.take_along_axis(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1], [0]]), axis=1)
        array([[2.],
               [3.]])
    """
    axis = one_axis(x, axis)
    return take_along(x, from_front(indices, x, axis), axis=axis)


def put_along_axis(x: Tensor, indices: Tensor, values: Tensor, axis: int = -1) -> Tensor:
    """x with values (one number, or in the shape of the indices) put at places along an axis.

    Examples:
        >>> xp.put_along_axis(np.zeros((2, 2)), np.array([[1], [0]]), 9.0, axis=1)
        array([[0., 9.],
               [9., 0.]])
    """
    axis = one_axis(x, axis)
    indices = from_front(indices, x, axis)
    if 0 in (known_shape(indices) or ()):
        return x
    last = find_last(indices, x, axis)
    if getattr(values, "ndim", 0):
        values = take_along(values, maximum(last, 0), axis=axis)
    return where(less(last, 0), x, values)


def add_along_axis(x: Tensor, indices: Tensor, values: Tensor, axis: int = -1) -> Tensor:
    """x with values in the shape of the indices added at places along an axis.

    Examples:
        >>> xp.add_along_axis(np.ones((1, 2)), np.array([[1]]), np.array([[5.0]]), axis=1)
        array([[1., 6.]])
    """
    axis = one_axis(x, axis)
    return x + untake_along(values, from_front(indices, x, axis), x, axis=axis)


def one_hot(indices: Tensor, depth: int, axis: int = -1) -> Tensor:
    """True at each index along a new axis of that length; nowhere for one that lies outside.

    Examples:
        >>> xp.one_hot(np.array([1, 0]), 3)
        array([[False,  True, False],
               [ True, False, False]])
    """
    places = np.arange(depth)
    if axis != -1:
        places = places.reshape(-1, *(1,) * (indices.ndim - axis))
    return equal(expand_dims(indices, axis), places)


# --- what the dialects write with these -----------------------------------------------------------

# By the meaning of an index out of range; one that is clipped is inside.
TAKING = {
    "refused": transposes.take_at,
    "inside": transposes.take_inside,
    "nearest": transposes.take_nearest,
    "clip": transposes.take_at,
}
ADDING = {
    "refused": transposes.untake_at,
    "inside": transposes.untake_inside,
    "clip": transposes.untake_at,
}


def take_at(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Return the slices of x at indices along an axis, which the axes of the indices replace."""
    return transposes.take_at(x, from_front(indices, x, axis), axis=axis)


def put_at(x: Tensor, indices: Tensor, values: Any, axis: int, outside: str = "refused") -> Tensor:
    """Return x with slices, or one number, put at places along an axis, counted from the front."""
    axis = axis % x.ndim
    # All slices share the indices, so the last value of each place is found along one line.
    line = getitem(x, tuple(slice(None) if i == axis else 0 for i in range(x.ndim)))
    last = find_last(reshape(indices, -1), line, 0, outside)
    put = reshape(greater_equal(last, 0), (-1, *(1,) * (x.ndim - axis - 1)))
    if getattr(values, "ndim", 0):
        values = broadcast_to(values, TAKING[outside](x, indices, axis=axis))
        if indices.ndim != 1:
            shape, end = tuple(values.shape), axis + indices.ndim
            values = reshape(values, (*shape[:axis], prod(shape[axis:end]), *shape[end:]))
        values = transposes.take_nearest(values, last, axis=axis)
    return where(put, values, x)


def find_last(indices: Tensor, x: Tensor, axis: int, outside: str = "refused") -> Tensor:
    """Return for each place of x along an axis its last position among the indices, -1 if none."""
    if outside != "inside":
        return last_put(indices, x, axis=axis)
    length = dim(x, axis)  # an index out of range goes to one extra place, cut off below
    behind = where(is_inside(indices, length), indices, length)
    longer = concatenate([x, getitem(x, along(x, slice(0, 1), axis))], axis)
    return getitem(last_put(behind, longer, axis=axis), along(x, slice(0, -1), axis))


def along(x: Tensor, part: slice, axis: int) -> tuple[Any, ...]:
    """Return the index of a part along one axis."""
    after = -1 - axis if axis < 0 else x.ndim - 1 - axis
    return (..., part, *(slice(None),) * after)


def is_inside(indices: Tensor, length: Any) -> Tensor:
    return logical_and(greater_equal(indices, 0), less(indices, length))


def from_front(indices: Tensor, x: Tensor, axis: int) -> Tensor:
    """Return indices that count from the front."""
    if isinstance(indices, Value) and is_from_front(indices.node):
        return indices
    if isinstance(indices, list | tuple | np.ndarray):
        indices = np.asarray(indices)
        if not indices.size or indices.min() >= 0:
            return indices
    return where(less(indices, 0), indices + dim(x, axis), indices)


# Ops whose results are places, counted from the front.
PLACES = (ops.ARGMAX, ops.ARGMIN, ops.ARGSORT)
# Ops that only move or choose integers.
KEEPING = (
    ops.GETITEM, ops.TAKE, ops.EXPAND_DIMS, ops.SQUEEZE, ops.RESHAPE, ops.RESHAPE_LIKE,
    ops.BROADCAST_TO, ops.BROADCAST_TO_SHAPE, ops.PERMUTE_DIMS, ops.FLIP, ops.CAST, ops.PART,
    ops.STOP_GRADIENT, ops.SWAPAXES, ops.TILE, ops.REPEAT,
)  # fmt: skip


def is_from_front(node: Node) -> bool:
    """Return whether integers are known not to be negative."""
    if node.op is ops.ARRAY:
        values = node.attr("value").as_numpy("int64")
        return not values.size or bool(values.min() >= 0)
    if node.op is ops.MAXIMUM:
        return any(o.op is ops.CONST and o.attr("value") >= 0 for o in node.operands)
    is_bool = node.op is ops.CAST and node.operands[0].type.dtype == "bool"
    return node.op in PLACES or is_bool or (node.op in KEEPING and is_from_front(node.operands[0]))
