"""Indices that hold symbolic integers: `x[i]`, `x[:, i, j]`, `x[i] = value`, `x.at[i].add(value)`.

Indexed axes that are neighbors are merged into one, along which elements are taken or put. Merging
several needs their lengths, which become facts of the capture.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ...graph import ops
from ...graph.ir.graph import Node
from ...graph.ir.types import INT64, WHOLE
from ...graph.support.class_bases import dataclass
from ...trace.axes import known_shape
from ...trace.derived.calls import passing_to
from ...trace.trace import Value, cast_node, lift
from ...trace.xp import all as xp
from ...trace.xp.shapes import ADDING, TAKING, from_front, is_inside, put_at
from ..dialect import habits_of

Tensor = Any


def cut(x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    return at(x, axis, slice(start, stop))


def at(x: Tensor, axis: int, item: Any) -> Tensor:
    """Return a view of x indexed by `item` along one axis."""
    whole = slice(None)
    if axis < 0:
        return xp.getitem(x, (..., item, *(whole,) * (-axis - 1)))
    return xp.getitem(x, (*(whole,) * axis, item))


def holds_places(index: Any) -> bool:
    items = index if isinstance(index, tuple) else (index,)
    return any(is_places(item) for item in items)


def is_places(item: Any) -> bool:
    if not isinstance(item, Value) or item.node.type.dtype not in WHOLE:
        return False
    # torch treats an index of uint8 as a mask (deprecated there), NumPy as places.
    if item.node.type.dtype == "uint8" and habits_of(item.trace).bytes_are_masks:
        raise TypeError("an index of uint8 is a mask in torch: cast it to bool, or to int64")
    return True


@dataclass(frozen=True, slots=True)
class MergedAxes:
    """A tensor whose indexed axes are merged into one.

    Attributes:
        whole: the tensor.
        places: the places along `axis`, counted from the front.
        axis: the merged axis.
        shape: the shape before the merge; None if one axis is indexed.
        inside: whether each of several indices is in range; None: all are, or the op checks it.
    """

    whole: Tensor
    places: Value
    axis: int
    shape: tuple[int, ...] | None
    inside: Value | None = None

    def restored(self, x: Tensor) -> Tensor:
        return x if self.shape is None else xp.reshape(x, self.shape)


def merge(x: Tensor, items: list[Any], outside: str, from_end: bool = True) -> MergedAxes:
    """Merge the axes that several arrays index.

    Args:
        items: whole slices, an ellipsis, and neighboring integers or integer arrays.
        outside: the meaning of an index out of range, see `trace/xp/shapes.py`.
        from_end: whether a negative index counts from the end; else it is out of range.

    Raises:
        TypeError: arrays are not neighbors, or do not hold integers.
    """
    at = [i for i, item in enumerate(items) if not _is_whole(item)]
    if at != list(range(at[0], at[-1] + 1)):
        raise TypeError("indices that stand apart put their axes first; take them one by one")
    arrays = [as_value(x, items[i]) for i in at]
    is_from_end = any(item is Ellipsis for item in items[: at[0]])
    axis = x.ndim - len(items) + at[0] if is_from_end else at[0]
    if len(arrays) == 1:
        front = from_front(arrays[0], x, axis) if from_end else arrays[0]
        return MergedAxes(x, limited(front, x, axis) if outside == "clip" else front, axis, None)
    shape = tuple(x.shape)
    lengths = shape[axis : axis + len(arrays)]
    total = prod(lengths)
    places: Any = 0
    inside: Any = None
    for i, array in enumerate(arrays):
        front = from_front(array, x, axis + i) if from_end else array
        if not _is_known_inside(front.node, lengths[i]):
            mask = is_inside(front, lengths[i])
            inside = mask if inside is None else xp.logical_and(inside, mask)
        if outside in ("nearest", "clip"):
            front = limited(front, x, axis + i)
        places = places + front * prod(lengths[i + 1 :])
    # If one index is out of range the merged place must be too: else it would name another element.
    if inside is not None and outside not in ("nearest", "clip"):
        places = xp.where(inside, places, total)
    whole = xp.reshape(x, (*shape[:axis], total, *shape[axis + len(arrays) :]))
    return MergedAxes(whole, places, axis, shape, inside)


def limited(places: Value, x: Tensor, axis: int) -> Value:
    """Return places limited to the range of an axis."""
    return xp.minimum(xp.maximum(places, 0), xp.dim(x, axis) - 1)


def _is_known_inside(node: Node, length: int) -> bool:
    while node.op in (ops.CAST, ops.RESHAPE, ops.EXPAND_DIMS):
        node = node.operands[0]
    if node.op is not ops.ARRAY:
        return False
    values = node.attr("value").as_numpy("int64")
    return not values.size or bool(values.min() >= 0 and values.max() < length)


def _is_whole(item: Any) -> bool:
    return item is Ellipsis or (isinstance(item, slice) and item == slice(None))


def as_value(x: Tensor, item: Any) -> Any:
    """Return the integers of an index as a symbolic value."""
    if isinstance(item, Value):
        if item.node.type.dtype not in (*WHOLE, "int"):
            raise TypeError(f"it indexes by {item.node.type.dtype}")
        return item
    array = np.asarray(item)
    if array.dtype.kind not in "iu":
        raise TypeError(f"it indexes by {array.dtype} beside symbolic integers")
    value = x.trace.value(cast_node(lift(x.trace, np.atleast_1d(array)), INT64))
    return value if array.ndim else xp.reshape(value, ())


def taken(
    x: Tensor,
    items: list[Any],
    outside: str | None = None,
    fill: Any = None,
    from_end: bool = True,
) -> Value:
    """Return the elements at an index.

    Args:
        outside: how to treat indices out of range; None: as the library does.
        fill: the value for indices out of range, if not zero.
    """
    outside = outside or habits_of(x.trace).outside[0]
    if outside == "nearest" and all(is_number(item) for item in items if not _is_whole(item)):
        outside = "clip"  # of single elements; the nearest one gets the gradient
    merged = merge(x, items, outside, from_end)
    found = TAKING[outside](merged.whole, merged.places, axis=merged.axis)
    rest = fill
    if outside == "nearest":
        if merged.inside is None:
            return found
        # The nearest element gets no gradient, as with `take_nearest` for one index.
        rest = xp.stop_gradient(found)
    if rest is None:
        return found
    inside = merged.inside
    if inside is None:
        inside = is_inside(merged.places, xp.dim(merged.whole, merged.axis))
    return xp.where(beside_axes(inside, merged.whole.ndim - merged.axis - 1), found, rest)


def is_number(item: Any) -> bool:
    return isinstance(item, Value) and known_shape(item) == ()


def beside_axes(mask: Any, after: int) -> Value:
    return xp.reshape(mask, (*mask.shape, *(1,) * after)) if after else mask


def put(
    x: Tensor, items: list[Any], value: Any, outside: str | None = None, from_end: bool = True
) -> Value:
    """Return x with a value put at an index; the last of several values for one place wins."""
    outside = outside or habits_of(x.trace).outside[1]
    merged = merge(x, items, outside, from_end)
    return merged.restored(put_slices(merged.whole, merged.places, value, merged.axis, outside))


def put_slices(x: Tensor, places: Value, value: Any, axis: int, outside: str = "refused") -> Value:
    """Return x with slices, or one number, put at places along an axis."""
    after = put_at(x, places, value, axis, outside)
    if not isinstance(value, Value) or not habits_of(x.trace).overwritten_too:
        return after
    # In torch overwritten values of a repeated place get a gradient too: that of the sum of puts.
    before = put_at(x, places, 0.0, axis, outside)
    return passing_to(x.trace, (before + _added(x, places, value, axis, outside)).node, after.node)


def _added(x: Tensor, places: Value, value: Any, axis: int, outside: str) -> Value:
    slices = TAKING[outside](x, places, axis=axis)
    is_one = getattr(value, "ndim", 0) == 0
    given = xp.full_like(slices, value) if is_one else xp.broadcast_to(value, slices)
    return ADDING[outside](given, places, x, axis=axis)


def added(
    x: Tensor, items: list[Any], value: Any, outside: str | None = None, from_end: bool = True
) -> Value:
    """Return x with a value added at an index, once for each time that a place is named."""
    if outside == "promised":  # jax drops values out of range but gives them a gradient
        before, after = (added(x, items, value, each) for each in ("clip", "inside"))
        return passing_to(x.trace, before.node, after.node)
    outside = outside or habits_of(x.trace).outside[1]
    merged = merge(x, items, outside, from_end)
    whole = merged.whole
    return merged.restored(whole + _added(whole, merged.places, value, merged.axis, outside))
