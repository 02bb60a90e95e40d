"""Parts of tensors: indices that hold symbolic integers; splitting, joining and broadcasting;
differences, windows and borders along an axis.

Composed from the ops; a dialect gives the functions its own parameters. A length that decides the
number of parts is fixed in the capture.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ....core import ops
from ....core.ir.graph import Node
from ....core.ir.op import INT64, WHOLE, is_float
from ....core.trace.trace import Value, cast_node, is_symbolic_tensor, known_shape, lift
from ....core.trace.xp import all as xp
from ...lowering.calls import route_gradient
from ...trace.xp.shapes import ADDING, TAKING, from_front, is_inside, put_at
from ..dialect import habits_of

# --- indices that hold symbolic integers ----------------------------------------------------------
# `x[i]`, `x[:, i, j]`, `x[i] = value`, `x.at[i].add(value)`. Indexed axes that are neighbors are
# merged into one, along which elements are taken or put. Merging several needs their lengths, which
# become facts of the capture.
Tensor = Any


def cut(x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    return at(x, axis, slice(start, stop))


def check_range(x: Tensor, axis: int, start: Any, count: Any) -> None:
    """Refuse a range outside an axis, which a slice would clip."""
    first, n, total = operator.index(start), operator.index(count), length(x, axis)
    if first < 0 or n < 0 or first + n > total:
        raise TypeError(f"{n} elements from {first} on of an axis of length {total}")


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
    indexed_axes = [i for i, item in enumerate(items) if not is_whole(item)]
    if indexed_axes != list(range(indexed_axes[0], indexed_axes[-1] + 1)):
        raise TypeError("indices that stand apart put their axes first; take them one by one")
    arrays = [as_value(x, items[i]) for i in indexed_axes]
    is_from_end = any(item is Ellipsis for item in items[: indexed_axes[0]])
    axis = x.ndim - len(items) + indexed_axes[0] if is_from_end else indexed_axes[0]
    if len(arrays) == 1:
        index = from_front(arrays[0], x, axis) if from_end else arrays[0]
        return MergedAxes(x, limited(index, x, axis) if outside == "clip" else index, axis, None)
    shape = tuple(x.shape)
    lengths = shape[axis : axis + len(arrays)]
    total = prod(lengths)
    places: Any = 0
    inside: Any = None
    for i, array in enumerate(arrays):
        index = from_front(array, x, axis + i) if from_end else array
        if not _is_known_inside(index.node, lengths[i]):
            mask = is_inside(index, lengths[i])
            inside = mask if inside is None else xp.logical_and(inside, mask)
        if outside in ("nearest", "clip"):
            index = limited(index, x, axis + i)
        places = places + index * prod(lengths[i + 1 :])
    # If one index is out of range the merged place must be too: else it would name another element.
    if inside is not None and outside not in ("nearest", "clip"):
        places = xp.where(inside, places, total)
    whole = xp.reshape(x, (*shape[:axis], total, *shape[axis + len(arrays) :]))
    return MergedAxes(whole, places, axis, shape, inside)


def limited(places: Value, x: Tensor, axis: int) -> Value:
    return xp.minimum(xp.maximum(places, 0), xp.dim(x, axis) - 1)


def _is_known_inside(node: Node, length: int) -> bool:
    while node.op in (ops.CAST, ops.RESHAPE, ops.EXPAND_DIMS):
        node = node.operands[0]
    if node.op is not ops.ARRAY:
        return False
    values = node.attr("value").as_numpy("int64")
    return not values.size or bool(values.min() >= 0 and values.max() < length)


def is_whole(item: Any) -> bool:
    # Not by `==`, which a symbolic bound answers with a symbol.
    is_slice = isinstance(item, slice)
    return item is Ellipsis or (is_slice and item.start is item.stop is item.step is None)


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
    merged = merge(x, items, outside, from_end)
    slices = TAKING[outside](merged.whole, merged.places, axis=merged.axis)
    fallback = fill
    if outside == "nearest":
        if merged.inside is None:
            return slices
        # The nearest element gets no gradient, as with `take_nearest` for one index.
        fallback = xp.stop_gradient(slices)
    if fallback is None:
        return slices
    inside = merged.inside
    if inside is None:
        inside = is_inside(merged.places, xp.dim(merged.whole, merged.axis))
    return xp.where(beside_axes(inside, merged.whole.ndim - merged.axis - 1), slices, fallback)


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
    result = put_at(x, places, value, axis, outside)
    if not isinstance(value, Value) or not habits_of(x.trace).overwritten_too:
        return result
    # In torch overwritten values of a repeated place get a gradient too: that of the sum of puts.
    gradient_source = put_at(x, places, 0.0, axis, outside)
    source = gradient_source + _added(x, places, value, axis, outside)
    return route_gradient(x.trace, result.node, to=source.node)


def _added(x: Tensor, places: Value, value: Any, axis: int, outside: str) -> Value:
    slices = TAKING[outside](x, places, axis=axis)
    is_single = getattr(value, "ndim", 0) == 0
    updates = xp.full_like(slices, value) if is_single else xp.broadcast_to(value, slices)
    return ADDING[outside](updates, places, x, axis=axis)


def added(
    x: Tensor, items: list[Any], value: Any, outside: str | None = None, from_end: bool = True
) -> Value:
    """Return x with a value added at an index, once for each time that a place is named."""
    if outside == "promised":  # jax drops values out of range but gives them a gradient
        gradient_source, result = (added(x, items, value, each) for each in ("clip", "inside"))
        return route_gradient(x.trace, result.node, to=gradient_source.node)
    outside = outside or habits_of(x.trace).outside[1]
    merged = merge(x, items, outside, from_end)
    tensor = merged.whole
    return merged.restored(tensor + _added(tensor, merged.places, value, merged.axis, outside))


def length(x: Tensor, axis: int) -> int:
    """Return the length of an axis, which becomes a fact of the capture."""
    return operator.index(xp.dim(x, axis))


def shape_of(x: Tensor) -> tuple[int, ...]:
    """Return the whole shape; that of a symbolic value becomes a fact of the capture."""
    return tuple(x.shape) if hasattr(x, "shape") else np.shape(x)


def rank(x: Any) -> int:
    return x.ndim if hasattr(x, "ndim") else np.ndim(x)


# --- splitting ------------------------------------------------------------------------------------
def pieces(x: Tensor, lengths: Sequence[Any], axis: int) -> tuple[Tensor, ...]:
    """Return consecutive parts of the given lengths, which must fill the axis."""
    sizes = [operator.index(n) for n in lengths]
    total = length(x, axis)
    if sum(sizes) != total or any(n < 0 for n in sizes):
        raise TypeError(f"parts of {sizes} of an axis of length {total}")
    ends = [*itertools.accumulate(sizes)]
    return tuple(cut(x, axis, end - n, end) for n, end in zip(sizes, ends, strict=True))


def pieces_of(x: Tensor, step: Any, axis: int) -> tuple[Tensor, ...]:
    """Return parts of one length; the last may be shorter."""
    total, step = length(x, axis), operator.index(step)
    if step <= 0:
        raise TypeError(f"parts of length {step}")
    starts = range(0, max(total, 1), step)
    return pieces(x, [min(step, total - start) for start in starts], axis)


def array_split(x: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    """Return nearly equal parts, the longer ones first, or those between indices, as in slices."""
    if isinstance(indices_or_sections, Sequence | np.ndarray):
        starts: list[Any] = [0, *map(operator.index, indices_or_sections)]
        bounds = zip(starts, [*starts[1:], None], strict=True)
        return [at(x, axis, slice(start, stop)) for start, stop in bounds]
    count = operator.index(indices_or_sections)
    if count <= 0:
        raise TypeError(f"{count} parts")
    size, longer_count = divmod(length(x, axis), count)
    return [*pieces(x, [size + (i < longer_count) for i in range(count)], axis)]


def split(x: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    if not isinstance(indices_or_sections, Sequence | np.ndarray):
        total, count = length(x, axis), operator.index(indices_or_sections)
        if count <= 0 or total % count:
            raise TypeError(f"{count} equal parts of an axis of length {total}")
    return array_split(x, indices_or_sections, axis)


def unstack(x: Tensor, axis: int = 0) -> tuple[Tensor, ...]:
    return tuple(at(x, axis, i) for i in range(length(x, axis)))


# --- joining, broadcasting, shapes ----------------------------------------------------------------
def atleast_1d(x: Tensor) -> Tensor:
    return xp.reshape(x, (1,)) if rank(x) == 0 else x


def atleast_2d(x: Tensor) -> Tensor:
    # A vector becomes a row.
    return x if rank(x) > 1 else xp.expand_dims(atleast_1d(x), 0)


def hstack(arrays: Sequence[Tensor]) -> Tensor:
    # Along the second axis; vectors along their only one.
    parts = [atleast_1d(x) for x in arrays]
    return xp.concatenate(parts, 0 if rank(parts[0]) == 1 else 1)


def vstack(arrays: Sequence[Tensor]) -> Tensor:
    # A vector becomes a row.
    return xp.concatenate([atleast_2d(x) for x in arrays], 0)


def block_diag(*matrices: Tensor) -> Tensor:
    blocks = [atleast_2d(x) for x in matrices]
    widths = [length(x, 1) for x in blocks]
    rows, offset = [], 0
    for x, width in zip(blocks, widths, strict=True):
        rows.append(xp.pad(x, ((0, 0), (offset, sum(widths) - offset - width))))
        offset += width
    return xp.concatenate(rows, 0)


def broadcast_arrays(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return each tensor repeated to the common shape; a number fills it in the library's dtype."""
    if all(map(is_number, tensors)):
        return tensors  # none has an axis
    symbols = [x for x in tensors if is_symbolic_tensor(x)]
    if not symbols:
        raise TypeError("it gives tensors that are not symbolic the shape of one another")
    shapes = [
        known_shape(x) if is_symbolic_tensor(x) else np.shape(x)
        for x in tensors
        if not is_number(x)
    ]
    # If a shape is symbolic the common one is that of a sum, of which only the shape is read.
    if None in shapes:
        common = functools.reduce(xp.add, (_zeros(x) for x in tensors if not is_number(x)))
        like: Any = common
    else:
        like = np.broadcast_shapes(*shapes)  # type: ignore[arg-type]
        common = xp.broadcast_to(symbols[0], like)
    types = symbols[0].trace.types
    # The dtypes that the library gives its results, if it was asked.
    dtypes_given = () if types is None else types.given
    dtypes = dtypes_given if len(dtypes_given) == len(tensors) else (None,) * len(tensors)
    return tuple(
        xp.full_like(common, x, dtype or None) if is_number(x) else xp.broadcast_to(x, like)
        for x, dtype in zip(tensors, dtypes, strict=True)
    )


def is_number(x: Any) -> bool:
    # A number, concrete or symbolic; a symbolic tensor may turn out to have no axes, but counts as
    # one.
    return not is_symbolic_tensor(x) and (isinstance(x, Value) or not np.shape(x))


def _zeros(x: Tensor) -> Tensor:
    # Only the shape matters, so integers become zeros of a float dtype.
    if not is_symbolic_tensor(x):
        return np.zeros(np.shape(x))
    return xp.zeros_like(x, None if is_float(x.node.type) else "float32")


def meshgrid(*vectors: Tensor, indexing: str = "xy") -> tuple[Tensor, ...]:
    """Return the coordinates of a grid; "xy": the first one changes along the second axis."""
    if indexing not in ("ij", "xy"):
        raise TypeError(f"meshgrid indexed {indexing!r}; 'ij' and 'xy' are known")
    count = len(vectors)
    places = [*range(count)]
    if indexing == "xy" and count > 1:
        places[:2] = 1, 0
    lines = [
        xp.reshape(x, (*(1,) * place, -1, *(1,) * (count - place - 1)))
        for x, place in zip(vectors, places, strict=True)
    ]
    return broadcast_arrays(*lines)


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Merge neighboring axes into one."""
    if start_dim == 0 and end_dim == -1:
        return xp.reshape(x, -1)
    axes = rank(x)
    if axes == 0:
        return xp.reshape(x, (1,))
    first, last = start_dim % axes, end_dim % axes
    if first > last or not (-axes <= start_dim < axes and -axes <= end_dim < axes):
        raise TypeError(f"flatten from axis {start_dim} to {end_dim} of {axes}")
    if first == last:
        return x
    lengths = shape_of(x)
    merged_length = int(np.prod(lengths[first : last + 1]))
    return xp.reshape(x, (*lengths[:first], merged_length, *lengths[last + 1 :]))


def rot90(x: Tensor, k: int = 1, axes: Any = (0, 1)) -> Tensor:
    """Rotate by quarter turns, from the first axis towards the second."""
    first, second = axes
    turns = k % 4
    if turns == 0:
        return x
    if turns == 2:
        return xp.flip(x, (first, second))
    rotated = xp.flip(x, second) if turns == 1 else x
    rotated = xp.swapaxes(rotated, first, second)
    return rotated if turns == 1 else xp.flip(rotated, second)


def fliplr(x: Tensor) -> Tensor:
    return xp.flip(x, 1)


def flipud(x: Tensor) -> Tensor:
    return xp.flip(x, 0)


def expand_dims(x: Tensor, axis: Any) -> Tensor:
    """Insert axes of length 1 at the places that they have in the result."""
    places = axis if isinstance(axis, tuple | list) else (axis,)
    total = rank(x) + len(places) if any(i < 0 for i in places) and len(places) > 1 else 0
    for place in sorted(i + total if i < 0 and total else i for i in places):
        x = xp.expand_dims(x, place)
    return x


def ediff1d(x: Tensor, to_end: Any = None, to_begin: Any = None) -> Tensor:
    if to_end is not None or to_begin is not None:
        raise TypeError("ediff1d with to_end or to_begin; concatenate them")
    flat = xp.reshape(x, -1)
    return xp.subtract(at(flat, -1, slice(1, None)), at(flat, -1, slice(None, -1)))


def windows(x: Tensor, axis: int, size: Any, step: Any = 1) -> Tensor:
    """Return every window of a length along an axis, its elements along a new last axis."""
    if axis in (0, -1) and not rank(x):
        raise TypeError("windows of a tensor without axes")
    moved = xp.moveaxis(x, axis, -1)
    windowed = xp.windows(moved, operator.index(size), operator.index(step))
    return xp.moveaxis(windowed, -2, axis if axis >= 0 else axis - 1)


# --- borders --------------------------------------------------------------------------------------
def bordered(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """Return x extended along an axis by its own elements.

    Args:
        mode: "edge" repeats the outermost; "reflect" mirrors without it, "symmetric" with it;
            "wrap" continues at the other end.
    """
    n = length(x, axis)
    limit = {"edge": None, "reflect": n - 1, "symmetric": n, "wrap": n}[mode]
    if (limit is not None and max(before, after) > limit) or n == 0:
        raise TypeError(f"a border of {max(before, after)} in mode {mode!r} of {n} elements")
    parts = [x]
    if before:
        parts.insert(0, _left_border(x, axis, before, mode))
    if after:
        # The right border is the left one of the mirrored tensor.
        mirrored = _left_border(xp.flip(x, axis), axis, after, mode)
        parts.append(xp.flip(mirrored, axis))
    return xp.concatenate(parts, axis) if len(parts) > 1 else x


def _left_border(x: Tensor, axis: int, count: int, mode: str) -> Tensor:
    if mode == "wrap":
        return at(x, axis, slice(-count, None))
    if mode == "edge":
        return xp.repeat(at(x, axis, slice(0, 1)), count, axis)
    first = 1 if mode == "reflect" else 0
    return xp.flip(at(x, axis, slice(first, first + count)), axis)


BORDERS = ("edge", "reflect", "symmetric", "wrap")


def padded(
    x: Tensor, pairs: Sequence[Sequence[int]], mode: str = "constant", fill: Any = 0.0
) -> Tensor:
    """Return x with a border along its last axes, in (before, after) pairs; negative widths cut.

    Args:
        mode: "constant", or one of `BORDERS`.
    """
    if isinstance(fill, Value):
        raise TypeError("pad by a number that is not known; use xp.concatenate")
    widths = tuple((operator.index(before), operator.index(after)) for before, after in pairs)
    if any(width < 0 for pair in widths for width in pair):
        cuts = (slice(max(-before, 0), -max(-after, 0) or None) for before, after in widths)
        x = xp.getitem(x, (..., *cuts))
        widths = tuple((max(before, 0), max(after, 0)) for before, after in widths)
    if mode == "constant":
        return xp.pad(x, widths, fill)
    for axis, pair in enumerate(widths, -len(widths)):
        x = bordered(x, axis, *pair, mode) if any(pair) else x
    return x
