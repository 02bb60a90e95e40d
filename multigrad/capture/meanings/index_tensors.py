"""Indices that hold symbolic integers: `x[i]`, `x[:, i, j]`, `x[i] = value`, `x.at[i].add(value)`.

The axes that are indexed, which stand side by side, are merged into one, along which places are
taken or put. Several of them need the lengths, which are facts of the capture then.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ...graph.ir.types import INT64, WHOLE
from ...graph.support.data import dataclass
from ...trace.trace import Value, cast_node, lift
from ...trace.xp import all as xp
from ...trace.xp import indices
from ..code.table import habits_of

Tensor = Any


def holds_places(index: Any) -> bool:
    """Return whether an index has a symbolic tensor of integers in it."""
    items = index if isinstance(index, tuple) else (index,)
    return any(is_places(item) for item in items)


def is_places(item: Any) -> bool:
    """Return whether a value is a symbolic tensor of integers."""
    if not isinstance(item, Value) or item.node.type.dtype not in WHOLE:
        return False
    if item.node.type.dtype == "uint8" and habits_of(item.trace).bytes_are_masks:
        raise TypeError("an index of uint8 is a mask in torch: cast it to bool, or to int64")
    return True


@dataclass(frozen=True, slots=True)
class Merged:
    """A tensor whose indexed axes are one: `places` along `axis` of `whole`; `shape`: before."""

    whole: Tensor
    places: Value
    axis: int
    shape: tuple[int, ...] | None

    def restored(self, x: Tensor) -> Tensor:
        """Return a tensor of the merged shape in that of before."""
        return x if self.shape is None else xp.reshape(x, self.shape)


def merge(x: Tensor, items: list[Any]) -> Merged:
    """Merge the axes that several arrays index.

    Args:
        items: whole slices, an ellipsis, and integers or integer arrays, symbolic or not, side by
            side.

    Raises:
        TypeError: arrays stand apart, or are no integers.
    """
    at = [i for i, item in enumerate(items) if not _is_whole(item)]
    if at != list(range(at[0], at[-1] + 1)):
        raise TypeError("indices that stand apart put their axes first; take them one by one")
    arrays = [_as_value(x, items[i]) for i in at]
    is_from_end = any(item is Ellipsis for item in items[: at[0]])
    axis = x.ndim - len(items) + at[0] if is_from_end else at[0]
    if len(arrays) == 1:
        return Merged(x, arrays[0], axis, None)
    shape = tuple(x.shape)
    lengths = shape[axis : axis + len(arrays)]
    places: Any = 0
    for i, array in enumerate(arrays):
        front = indices.from_front(array, x, axis + i)
        places = places + front * prod(lengths[i + 1 :])
    whole = xp.reshape(x, (*shape[:axis], prod(lengths), *shape[axis + len(arrays) :]))
    return Merged(whole, places, axis, shape)


def _is_whole(item: Any) -> bool:
    return item is Ellipsis or (isinstance(item, slice) and item == slice(None))


def _as_value(x: Tensor, item: Any) -> Any:
    if isinstance(item, Value):
        if item.node.type.dtype not in (*WHOLE, "int"):
            raise TypeError(f"it indexes by {item.node.type.dtype}")
        return item
    array = np.asarray(item)
    if array.dtype.kind not in "iu":
        raise TypeError(f"it indexes by {array.dtype} beside symbolic integers")
    return x.trace.value(cast_node(lift(x.trace, array), INT64))


def taken(x: Tensor, items: list[Any]) -> Value:
    """Return what stands at an index."""
    merged = merge(x, items)
    return xp.take(merged.whole, merged.places, merged.axis)


def put(x: Tensor, items: list[Any], value: Any) -> Value:
    """Return x with a value at an index; of two values for one place, the last one."""
    merged = merge(x, items)
    return merged.restored(indices.put_at(merged.whole, merged.places, value, merged.axis))


def added(x: Tensor, items: list[Any], value: Any) -> Value:
    """Return x with a value added at an index, as often as a place is named."""
    merged = merge(x, items)
    slices = xp.take(merged.whole, merged.places, merged.axis)
    is_one = getattr(value, "ndim", 0) == 0
    given = xp.full_like(slices, value) if is_one else xp.broadcast_to(value, slices)
    return merged.restored(indices.add_at(merged.whole, merged.places, given, merged.axis))
