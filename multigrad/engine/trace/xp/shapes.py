"""Shapes, indexing and orders of `xg.xp`, where they are more than one op; see `all.py`.

Shapes, static indices and widths: a symbolic length among them fixes the shape of this capture.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index as integer
from typing import Any

import numpy as np

from ....core import ops
from ....core.ir.graph import Node
from ....core.trace.trace import (
    Axis,
    Value,
    apply,
    axes_of,
    is_symbolic_tensor,
    known_shape,
    one_axis,
)
from ....core.trace.xp.arrays import broadcast_to, dim
from ....core.trace.xp.ops import (
    cumprod,
    cumsum,
    equal,
    expand_dims,
    greater_equal,
    less,
    logical_and,
    maximum,
    squeeze,
    swapaxes,
    where,
)
from . import transposes
from .transposes import last_put, take_along, untake_along

Tensor = Any
Pairs = Any  # an int, or a sequence of ints and of pairs of ints

__all__ = [
    "add_along_axis", "concat", "concatenate", "cumulative_prod", "cumulative_sum", "getitem",
    "matrix_transpose", "one_hot", "pad", "permute_dims", "put_along_axis", "repeat", "reshape",
    "roll", "stack", "take", "take_along_axis", "tile", "top_k_mask", "tril", "triu",
]  # fmt: skip


def integers(given: Any) -> tuple[int, ...]:
    """Return a number, or several, as a tuple of ints; TypeError for floats."""
    return tuple(map(integer, given)) if isinstance(given, tuple | list) else (integer(given),)


def reshape(x: Tensor, shape: int | Sequence[int]) -> Tensor:
    """The same elements in another shape, of which one length may be -1.

    Examples:
        >>> xp.reshape(np.array([1.0, 2.0, 3.0, 4.0]), (2, -1))
        array([[1., 2.],
               [3., 4.]])
    """
    lengths = integers(shape)
    if lengths.count(-1) > 1 or any(n < -1 for n in lengths):
        raise TypeError(f"a shape has lengths from 0 and at most one -1, not {lengths}")
    return apply(ops.RESHAPE, x, shape=lengths)


def permute_dims(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """The axes in another order; None reverses them.

    Examples:
        >>> xp.permute_dims(np.zeros((2, 3, 4)), (2, 0, 1)).shape
        (4, 2, 3)
    """
    order = None if axes is None else integers(axes)
    if order is not None and sorted(i % len(order) for i in order) != list(range(len(order))):
        raise TypeError(f"permute_dims names each axis once, not {order}")
    return apply(ops.PERMUTE_DIMS, x, axes=order)


def matrix_transpose(x: Tensor) -> Tensor:
    """The last two axes exchanged.

    Examples:
        >>> xp.matrix_transpose(np.array([[1.0, 2.0], [3.0, 4.0]]))
        array([[1., 3.],
               [2., 4.]])
    """
    return swapaxes(x, -2, -1)


def roll(x: Tensor, shift: int | Sequence[int], axis: Axis = None) -> Tensor:
    """x shifted along axes, what leaves the end entering at the front; None: as if it were flat.

    Examples:
        >>> xp.roll(np.array([1.0, 2.0, 3.0]), 1)
        array([3., 1., 2.])
    """
    shifts = integers(shift)
    axes = axes_of(x, axis)
    if isinstance(axes, tuple):
        shifts = shifts * len(axes) if len(shifts) == 1 else shifts
        if len(shifts) != len(axes):
            raise TypeError(f"roll got {len(shifts)} shifts for {len(axes)} axes")
        return apply(ops.ROLL, x, shift=shifts, axis=axes)
    return apply(ops.ROLL, x, shift=sum(shifts), axis=axes)


def tril(x: Tensor, k: int = 0) -> Tensor:
    """x with zeros above the k-th diagonal of the last two axes.

    Examples:
        >>> xp.tril(np.array([[1.0, 2.0], [3.0, 4.0]]))
        array([[1., 0.],
               [3., 4.]])
    """
    return apply(ops.TRIL, x, offset=integer(k))


def triu(x: Tensor, k: int = 0) -> Tensor:
    """x with zeros below the k-th diagonal of the last two axes.

    Examples:
        >>> xp.triu(np.array([[1.0, 2.0], [3.0, 4.0]]))
        array([[1., 2.],
               [0., 4.]])
    """
    return apply(ops.TRIU, x, offset=integer(k))


def getitem(x: Tensor, index: Any) -> Tensor:
    """`x[index]` of ints, slices, None and `...`; several elements of an axis are `take`'s.

    Examples:
        >>> xp.getitem(np.array([1.0, 2.0, 3.0]), slice(1, None))
        array([2., 3.])

    Raises:
        TypeError: the index holds anything else.
    """
    items = index if isinstance(index, tuple) else (index,)
    return apply(ops.GETITEM, x, index=tuple(map(_static_item, items)))


def _static_item(item: Any) -> Any:
    if item is None:
        return None
    if item is Ellipsis or (isinstance(item, str) and item == "..."):
        return "..."
    if isinstance(item, slice):
        return tuple(None if n is None else integer(n) for n in (item.start, item.stop, item.step))
    if isinstance(item, bool) or (isinstance(item, Value) and item.node.type.kind != "scalar"):
        raise TypeError("it indexes by a mask or a tensor; use xp.where(condition, tensor, 0.0)")
    # A tensor of one element would pass for its number and lose its axis.
    if isinstance(item, tuple | list) or getattr(item, "ndim", 0):
        raise TypeError("it indexes by several numbers at once; use xp.take(x, indices, axis)")
    return integer(item)  # type: ignore[arg-type]


def tile(x: Tensor, repetitions: int | Sequence[int]) -> Tensor:
    """All of x repeated along its last axes.

    Examples:
        >>> xp.tile(np.array([1.0, 2.0]), 2)
        array([1., 2., 1., 2.])
    """
    return apply(ops.TILE, x, repetitions=integers(repetitions))


def repeat(x: Tensor, repeats: int, axis: int | None = None) -> Tensor:
    """Each element repeated along an axis (None: of x made flat).

    Examples:
        >>> xp.repeat(np.array([1.0, 2.0]), 2)
        array([1., 1., 2., 2.])
    """
    if axis is None:
        x, axis = reshape(x, -1), 0
    return apply(ops.REPEAT, x, repeats=integer(repeats), axis=one_axis(x, axis))


def pad(x: Tensor, widths: Pairs, value: float = 0.0) -> Tensor:
    """A border of one value: an int for all sides, or (before, after) pairs for the last axes.

    Examples:
        >>> xp.pad(np.array([1.0, 2.0]), ((1, 2),))
        array([0., 1., 2., 0., 0.])
    """
    sequence = widths if isinstance(widths, tuple | list) else (widths,) * x.ndim
    pairs = tuple(_pair(width) for width in sequence)
    if any(n < 0 for pair in pairs for n in pair):
        raise TypeError(f"pad adds elements, so its widths are not negative: {pairs}")
    return apply(ops.PAD, x, widths=pairs, fill=float(value))


def _pair(width: Any) -> tuple[int, int]:
    before, after = integers(width) if isinstance(width, tuple | list) else integers(width) * 2
    return before, after


def concatenate(arrays: Sequence[Tensor], axis: int | None = 0) -> Tensor:
    """Arrays one after the other along an axis (None: each made flat).

    Examples:
        >>> xp.concatenate([np.array([1.0]), np.array([2.0, 3.0])])
        array([1., 2., 3.])
    """
    if axis is None:
        arrays, axis = [reshape(array, -1) for array in arrays], 0
    return apply(ops.CONCATENATE, *arrays, axis=integer(axis))


def concat(arrays: Sequence[Tensor], axis: int | None = 0) -> Tensor:
    """The Array API's name of `concatenate`.

    Examples:
        >>> xp.concat([np.array([1.0]), np.array([2.0, 3.0])])
        array([1., 2., 3.])
    """
    return concatenate(arrays, axis)


def stack(arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Arrays of one shape along a new axis.

    Examples:
        >>> xp.stack([np.array([1.0, 2.0]), np.array([3.0, 4.0])])
        array([[1., 2.],
               [3., 4.]])
    """
    return apply(ops.STACK, *arrays, axis=integer(axis))


# --- along an axis -------------------------------------------------------------------------------


def cumulative_sum(x: Tensor, axis: int = -1) -> Tensor:
    """The Array API's name of `cumsum`.

    Examples:
        >>> xp.cumulative_sum(np.array([1.0, 2.0, 3.0]))
        array([1., 3., 6.])
    """
    return cumsum(x, axis)


def cumulative_prod(x: Tensor, axis: int = -1) -> Tensor:
    """The Array API's name of `cumprod`.

    Examples:
        >>> xp.cumulative_prod(np.array([1.0, 2.0, 3.0]))
        array([1., 2., 6.])
    """
    return cumprod(x, axis)


def top_k_mask(x: Tensor, k: int, axis: int = -1) -> Tensor:
    """A mask, True at the k largest elements along an axis (ties: the lower index first).

    All of it is True where the axis has fewer than k elements.

    Examples:
        >>> xp.top_k_mask(np.array([3.0, 1.0, 2.0]), 2)
        array([ True, False,  True])
    """
    count = integer(k)
    if count < 0:
        raise TypeError(f"top_k_mask marks k elements, at least 0, not {count}")
    return apply(ops.TOP_K_MASK, x, axis=one_axis(x, axis), k=count)


# --- integer places -------------------------------------------------------------------------------
# A place may count from the end, as in Python; here it is made to count from the front unless it is
# known to. Of two values put at one place the last one stays. `outside` says what an index out of
# range means: "refused", "inside" (zero is taken, nothing is put) or "nearest" (the first or last
# element is taken and gets no gradient), each an op of its own; or "clip": the index is limited
# first.
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
    plain = indices.tolist() if hasattr(indices, "tolist") else indices
    if any(isinstance(i, bool) for i in (plain if isinstance(plain, tuple | list) else [plain])):
        raise TypeError("its indices are bools; use xp.where(condition, tensor, 0.0)")
    places = integers(plain)
    elements = apply(ops.TAKE, x, indices=places, axis=one_axis(x, axis))
    return elements if isinstance(plain, tuple | list) else squeeze(elements, axis)


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
    position = find_last(indices, x, axis)
    if getattr(values, "ndim", 0):
        values = take_along(values, maximum(position, 0), axis=axis)
    return where(less(position, 0), x, values)


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
    position = find_last(reshape(indices, -1), line, 0, outside)
    is_set = reshape(greater_equal(position, 0), (-1, *(1,) * (x.ndim - axis - 1)))
    if getattr(values, "ndim", 0):
        values = broadcast_to(values, TAKING[outside](x, indices, axis=axis))
        if indices.ndim != 1:
            shape, end = tuple(values.shape), axis + indices.ndim
            values = reshape(values, (*shape[:axis], prod(shape[axis:end]), *shape[end:]))
        values = transposes.take_nearest(values, position, axis=axis)
    return where(is_set, values, x)


def find_last(indices: Tensor, x: Tensor, axis: int, outside: str = "refused") -> Tensor:
    """Return for each place of x along an axis its last position among the indices, -1 if none."""
    if outside != "inside":
        return last_put(indices, x, axis=axis)
    length = dim(x, axis)  # an index out of range goes to one extra place, cut off below
    clamped = where(is_inside(indices, length), indices, length)
    longer = concatenate([x, getitem(x, along(x, slice(0, 1), axis))], axis)
    return getitem(last_put(clamped, longer, axis=axis), along(x, slice(0, -1), axis))


def along(x: Tensor, part: slice, axis: int) -> tuple[Any, ...]:
    count = -1 - axis if axis < 0 else x.ndim - 1 - axis
    return (..., part, *(slice(None),) * count)


def is_inside(indices: Tensor, length: Any) -> Tensor:
    return logical_and(greater_equal(indices, 0), less(indices, length))


def from_front(indices: Tensor, x: Tensor, axis: int) -> Tensor:
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
    if node.op is ops.ARRAY:
        values = node.attr("value").as_numpy("int64")
        return not values.size or bool(values.min() >= 0)
    if node.op is ops.MAXIMUM:
        return any(o.op is ops.CONST and o.attr("value") >= 0 for o in node.operands)
    is_bool = node.op is ops.CAST and node.operands[0].type.dtype == "bool"
    return node.op in PLACES or is_bool or (node.op in KEEPING and is_from_front(node.operands[0]))
