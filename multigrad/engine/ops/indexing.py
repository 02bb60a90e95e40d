"""Indexing, take, tile, repeat, pad, concatenate and stack, each with the op of its VJP.

All attributes are static; backends too read them by `as_index` and `as_pairs`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.ir.graph import Node, make_node
from ...core.ir.op import (
    AXIS,
    HALVES,
    NEW_AXIS,
    Attr,
    Op,
    Type,
    are_integers,
    is_count,
    number,
    overwritten,
    reshaped,
    shaped_like_second,
)
from ...core.ops import selection
from ...core.ops.numerics import Array, widened
from ...core.ops.properties import filled_with_zero, in_first, linear
from ...core.ops.shapes import Shape, places, rearrangement, shaped
from ...core.ops.table import Composed, Cotangents, moved_by, op
from ...errors import PlaceError
from .result_shapes import ShapeRule, added


def in_place_of(x: Shape, axis: int, *lengths: int) -> Shape:
    """Return a shape with other lengths instead of one axis."""
    (place,) = places(axis, len(x))
    return (*x[:place], *lengths, *x[place + 1 :])


def halved(x: Shape, *, axis: int, **attrs: Any) -> Shape:
    n = x[places(axis, len(x))[0]]
    if n % 2:
        raise ValueError(f"axis {axis} of length {n} has no halves")
    return in_place_of(x, axis, n // 2)


def undoing(name: str, numpy: Any, vjp: Any, doc: str, **fields: Any) -> Op:
    """Declare the op that undoes a rearrangement; its second operand gives the shape."""
    return shaped(name, numpy, vjp, doc, in_vjps=True, **fields)


def is_index(value: object) -> bool:
    return isinstance(value, tuple) and all(map(is_index_item, value))


def is_index_item(item: object) -> bool:
    if isinstance(item, tuple):
        return len(item) == 3 and all(n is None or type(n) is int for n in item)
    return item is None or item == "..." or type(item) is int


def as_index(index: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the Python index that an attribute represents."""
    return tuple(
        [
            slice(*item) if isinstance(item, tuple) else Ellipsis if item == "..." else item
            for item in index
        ]
    )


def are_apart(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Return whether two index attributes have no element in common, in a tensor of any shape.

    They are compared axis by axis, from the front and from the end up to an ellipsis.
    """
    a, b = (tuple([item for item in index if item is not None]) for index in (a, b))
    for front_a, front_b in ((a, b), (a[::-1], b[::-1])):
        if front_a is not a and not ("..." in a and "..." in b):
            return False  # without an ellipsis the last axes are not named
        for i, j in zip(front_a, front_b, strict=False):
            if "..." in (i, j):
                break
            if is_before(i, j) or is_before(j, i):
                return True
    return False


def is_before(a: Any, b: Any) -> bool:
    """Return whether all that an item takes of an axis lies before what another takes."""
    end = (a + 1 or None) if isinstance(a, int) else a[1]
    start = b if isinstance(b, int) else b[0]
    steps = [item[2] for item in (a, b) if isinstance(item, tuple)]
    # Both counted from the front, or both from the end: the length of the axis does not matter.
    if end is None or start is None or (end < 0) != (start < 0):
        return False
    return end <= start and all(step is None or step > 0 for step in steps)


def getitem(x: Array, *, index: tuple[Any, ...]) -> Array:
    return np.asarray(x)[as_index(index)]


def setitem(x: Array, like: Array, *, index: tuple[Any, ...]) -> Array:
    result = np.zeros(np.shape(like), x.dtype)
    result[as_index(index)] = x
    return result


def put(x: Array, value: Array, *, index: tuple[Any, ...]) -> Array:
    return put_over(np.array(x), value, index=index)


def put_over(x: Array, value: Array, *, index: tuple[Any, ...]) -> Array:
    """Write a value where the index points, over x itself."""
    array = np.asarray(x)  # a 0-d result of NumPy is a number
    array[as_index(index)] = value
    return array


def put_by_masks(xp: Any, x: Any, value: Any, *, index: tuple[Any, ...]) -> Any:
    part = xp.getitem(x, index=index)
    ones, is_number = xp.full_like(part, 1, dtype=None), getattr(value, "ndim", 0) == 0
    whole = value if is_number else xp.setitem(xp.broadcast_to(value, part), x, index=index)
    return xp.where(xp.setitem(ones, x, index=index) != 0, whole, x)


def put_vjp(xp: Any, ct: Any, y: Any, x: Any, value: Any, *, index: Any) -> Cotangents:
    return xp.put(ct, 0.0, index), xp.getitem(ct, as_index(index))


def indexed_shape(x: tuple[int, ...], *, index: tuple[Any, ...]) -> tuple[int, ...]:
    # A view that allocates nothing: only its shape is used.
    return np.shape(np.broadcast_to(0, x)[as_index(index)])


def fitted(x: Shape, part: Shape, whole: Shape) -> Shape:
    """Return the shape of `whole`, of which x fills a part."""
    # NumPy's assignment ignores leading axes of length 1.
    shape = x
    while len(shape) > len(part) and shape[0] == 1:
        shape = shape[1:]
    if np.broadcast_shapes(shape, part) != part:
        raise ValueError(f"shape {x} is fitted where {part} is free")
    return whole


def put_back(takes: ShapeRule) -> ShapeRule:
    """Return the formula of an op whose last operand is `like`, where its x fits into what the op
    of another formula takes from that.
    """

    def shape(x: Shape, *others: Shape, **attrs: Any) -> Shape:
        *arguments, like = others
        return fitted(x, takes(like, *arguments, **attrs), like)

    return shape


def put_into(takes: ShapeRule) -> ShapeRule:
    """Return the formula of an op that puts a value into what the op of another formula takes."""

    def shape(x: Shape, value: Shape, **attrs: Any) -> Shape:
        return fitted(value, takes(x, **attrs), x)

    return shape


def setitem_vjp(xp: Any, ct: Any, y: Any, x: Any, like: Any, *, index: Any) -> Cotangents:
    return xp.getitem(ct, as_index(index)), None


def from_front(indices: tuple[int, ...], length: int) -> list[int]:
    for i in indices:
        if not -length <= i < length:
            raise PlaceError(f"index {i} is out of bounds for an axis of {length} elements")
    return [i % length for i in indices]


def take(x: Array, *, indices: tuple[int, ...], axis: int) -> Array:
    return np.take(x, np.array(indices, np.intp), axis=axis)


def taken(node: Node, sizes: Sequence[int]) -> int:
    return sizes[0] * max(1, len(node.attr("indices")))


def taken_shape(x: Shape, *, indices: Sequence[int], axis: int) -> Shape:
    (place,) = places(axis, len(x))
    bad_indices = [i for i in indices if not -x[place] <= i < x[place]]
    if bad_indices:
        raise IndexError(f"index {bad_indices[0]} for axis {axis}, which is {x[place]} long")
    return in_place_of(x, axis, len(indices))


@widened
def untake(x: Array, like: Array, *, indices: tuple[int, ...], axis: int) -> Array:
    result = np.zeros(np.moveaxis(like, axis, 0).shape, x.dtype)
    # Adds at repeated indices too, where an assignment keeps only the last value.
    np.add.at(result, np.array(indices, np.intp), np.moveaxis(x, axis, 0))
    return np.moveaxis(result, 0, axis)


def drop_put(node: Node, grad_out: Node | None) -> Node | None:
    # What x holds there is put back (Python's `x[i] += 1` ends so), or a second value over a first.
    x, value = node.operands
    if value.op is GETITEM and value.operands[0] is x and value.attrs == node.attrs:
        return x
    if x.op is PUT and x.attrs == node.attrs:
        return make_node(PUT, (x.operands[0], value), dict(node.attrs), node.type)
    return None


def read_past_puts(node: Node, grad_out: Node | None) -> Node | None:
    # A slice that no value was put into, or a number. From the tensor before all of them: what is
    # read between two puts keeps the second from writing over the result of the first.
    index, (x,) = node.attr("index"), node.operands
    while x.op is PUT and are_apart(x.attr("index"), index):
        (x, _) = x.operands
    if x.op is PUT:
        _, value = x.operands
        if x.attr("index") != index or value.type.kind != "scalar":
            return None
        while x.op is PUT:
            (x, _) = x.operands
        part = make_node(GETITEM, (x,), dict(node.attrs), node.type)
        return make_node(selection.FULL_LIKE, (part, value), {"dtype": node.type.dtype}, node.type)
    if x is node.operands[0]:
        return None
    return make_node(GETITEM, (x,), dict(node.attrs), node.type)


INDEX = Attr(is_index)
INDICES = Attr(are_integers)
GETITEM = rearrangement(
    "getitem",
    getitem,
    moved_by("setitem", 0),
    "Basic indexing: ints, slices as (start, stop, step), None, '...'.",
    index=INDEX,
    composed=True,
    view="always",
    rewrites=(read_past_puts,),
)
SETITEM = undoing(
    "setitem",
    setitem,
    setitem_vjp,
    "Zeros in the shape of `like`, x where the index points.",
    shape_of=put_back(indexed_shape),
    index=INDEX,
)
PUT = op(
    "put",
    "x value",
    coerce="raw",
    numpy=put,
    vjp=put_vjp,
    result=overwritten,
    doc="x with a value where the index points: a tensor that fits there, or one number.",
    in_vjps=True,
    degree=linear,
    shape_of=put_into(indexed_shape),
    made_of=put_by_masks,
    rounds=False,
    rewrites=(drop_put,),
    index=INDEX,
)
TAKE = rearrangement(
    "take",
    take,
    moved_by("untake", 0),
    "The elements at static indices along an axis.",
    indices=INDICES,
    axis=AXIS,
    composed=True,
    copies=taken,
    shape_of=taken_shape,
)
UNTAKE = undoing(
    "untake",
    untake,
    moved_by("take"),
    "Zeros in the shape of `like`, x added at indices along an axis.",
    shape_of=put_back(taken_shape),
    indices=INDICES,
    axis=AXIS,
)


def half_vjp(xp: Any, ct: Any, y: Any, x: Any, *, axis: int, position: int) -> Cotangents:
    zeros = xp.zeros_like(ct)
    return (xp.concatenate((zeros, ct) if position else (ct, zeros), axis=axis),)


def half_of(xp: Any, x: Any, *, axis: int, position: int) -> Any:
    length = xp.dim(x, axis=axis)
    if isinstance(length, int) and length % 2:
        raise ValueError(f"axis {axis} of length {length} has no halves")
    return x[along(x, position * (length // 2), length // 2, axis)]


def part(x: Array, like: Array, start: int, *, axis: int) -> Array:
    return x[along(x, start, np.shape(like)[axis], axis)]


def unpart(x: Array, like: Array, start: int, *, axis: int) -> Array:
    result = np.zeros(np.shape(like), x.dtype)
    result[along(x, start, x.shape[axis], axis)] = x
    return result


def along(x: Array, start: int, length: int, axis: int) -> tuple[slice, ...]:
    """Return the index of `length` elements along one axis."""
    return (*(slice(None),) * (axis % x.ndim), slice(start, start + length))


def sliced(x: Type, like: Type, start: Type, *, axis: int) -> Type:
    if start.kind != "scalar" or start.dtype != "int":
        raise TypeError(f"its start must be an integer, not {start}")
    return shaped_like_second(x, like)


def as_long_as(x: Shape, like: Shape, start: Shape, *, axis: int) -> Shape:
    """Return the shape of x cut along an axis to the length of `like`."""
    return in_place_of(x, axis, min(like[axis], x[axis]))


def put_from(x: Shape, like: Shape, start: Shape, *, axis: int) -> Shape:
    return fitted(x, in_place_of(like, axis, x[axis]), like)


HALF = rearrangement(
    "half",
    Composed(half_of, rounds=False),
    half_vjp,
    "The first or second half along an axis of even length.",
    position=HALVES,
    axis=AXIS,
    in_vjps=True,
    view="sometimes",
    shape_of=halved,
)
PIECE = {"operands": "x like start", "result": sliced, "degree": in_first, "axis": AXIS}
PART = undoing(
    "part",
    part,
    moved_by("unpart", 0, 2),
    "As much of x along an axis as `like` is long, from start.",
    view="sometimes",
    shape_of=as_long_as,
    **PIECE,
)
UNPART = undoing(
    "unpart",
    unpart,
    moved_by("part", 0, 2),
    "Zeros in the shape of `like`, x from start on.",
    shape_of=put_from,
    **PIECE,
)


def sum_of(copies: ShapeRule) -> ShapeRule:
    """Return the formula of an op that sums the copies which the op of another formula makes."""

    def shape(x: Shape, like: Shape, **attrs: Any) -> Shape:
        whole = copies(like, **attrs)
        if math.prod(x) != math.prod(whole):
            raise ValueError(f"shape {x} is no copies of {like}, which are {whole}")
        return like

    return shape


def tile(x: Array, *, repetitions: tuple[int, ...]) -> Array:
    return np.tile(x, repetitions)


def tiled(node: Node, sizes: Sequence[int]) -> int:
    return sizes[0] * math.prod(max(1, n) for n in node.attr("repetitions"))


def tiled_shape(x: Shape, *, repetitions: tuple[int, ...]) -> Shape:
    rank = max(len(x), len(repetitions))
    pairs = zip(filled_up(x, rank), filled_up(repetitions, rank), strict=True)
    return tuple([n * copies for n, copies in pairs])


def filled_up(lengths: Sequence[int], rank: int) -> tuple[int, ...]:
    return (*(1,) * (rank - len(lengths)), *lengths)


def sum_of_tiles(xp: Any, x: Any, like: Any, *, repetitions: tuple[int, ...]) -> Any:
    shape = tile_shape([xp.dim(like, axis=i) for i in range(like.ndim)], repetitions)
    copies = tuple(range(0, len(shape), 2))
    total = xp.sum(xp.reshape(x, shape=tuple(shape)), axis=copies, keepdims=False) if shape else x
    return xp.reshape_like(total, like)


def tile_shape(shape: Any, repetitions: tuple[int, ...]) -> list[Any]:
    """Return the shape in which numbers of copies and lengths alternate."""
    ndim = max(len(shape), len(repetitions))
    copies = (*(1,) * (ndim - len(repetitions)), *repetitions)
    lengths = (*(1,) * (ndim - len(shape)), *shape)
    return [n for pair in zip(copies, lengths, strict=True) for n in pair]


def repeated(node: Node, sizes: Sequence[int]) -> int:
    return sizes[0] * max(1, node.attr("repeats"))


def repeated_shape(x: Shape, *, repeats: int, axis: int) -> Shape:
    return in_place_of(x, axis, x[places(axis, len(x))[0]] * repeats)


def sum_of_repeats(xp: Any, x: Any, like: Any, *, repeats: int, axis: int) -> Any:
    lengths, axis = [xp.dim(like, axis=i) for i in range(like.ndim)], axis % like.ndim
    copies = xp.reshape(x, shape=(*lengths[: axis + 1], repeats, *lengths[axis + 1 :]))
    return xp.sum(copies, axis=axis + 1, keepdims=False)


REPETITIONS = Attr(are_integers)
COPIES = Attr(is_count, (2, 1, 3))
TILE = rearrangement(
    "tile",
    tile,
    moved_by("untile", 0),
    "All of x repeated along its last axes.",
    shape_of=tiled_shape,
    repetitions=REPETITIONS,
    composed=True,
    copies=tiled,
)
UNTILE = undoing(
    "untile",
    Composed(sum_of_tiles, rounds=False),
    moved_by("tile"),
    "The sum over the copies that tile makes.",
    shape_of=sum_of(tiled_shape),
    repetitions=REPETITIONS,
)
REPEAT = rearrangement(
    "repeat",
    np.repeat,
    moved_by("unrepeat", 0),
    "Each element repeated along an axis.",
    shape_of=repeated_shape,
    repeats=COPIES,
    axis=AXIS,
    composed=True,
    copies=repeated,
)
UNREPEAT = undoing(
    "unrepeat",
    Composed(sum_of_repeats, rounds=False),
    moved_by("repeat"),
    "The sum over the copies that repeat makes.",
    shape_of=sum_of(repeated_shape),
    repeats=COPIES,
    axis=AXIS,
)


def are_widths(value: object) -> bool:
    return isinstance(value, tuple) and all(
        are_integers(pair) and len(pair) == 2 and min(pair) >= 0 for pair in value
    )


def as_pairs(widths: tuple[Any, ...], ndim: int) -> list[tuple[int, int]]:
    """Return a (before, after) pair for every axis, from those of the last axes."""
    if len(widths) > ndim:
        raise ValueError(f"pad got widths of {len(widths)} axes for a tensor of {ndim}")
    return [(0, 0)] * (ndim - len(widths)) + [tuple(pair) for pair in widths]


def pad(x: Array, *, widths: tuple[Any, ...], fill: float) -> Array:
    return np.pad(x, as_pairs(widths, np.ndim(x)), constant_values=x.dtype.type(fill))


def padded_shape(x: tuple[int, ...], *, widths: Any, fill: float) -> tuple[int, ...]:
    pairs = as_pairs(widths, len(x))
    return tuple([n + before + after for n, (before, after) in zip(x, pairs, strict=True)])


def pad_vjp(xp: Any, ct: Any, y: Any, x: Any, *, widths: Any, fill: float) -> Cotangents:
    # An end of None, because a slice to -0 is empty.
    inner_index = tuple((before, -after if after else None, None) for before, after in widths)
    return (xp.getitem(ct, as_index(("...", *inner_index))),)


def padded(node: Node, sizes: Sequence[int]) -> int:
    return sizes[0] * math.prod(1 + before + after for before, after in node.attr("widths"))


def concatenate(*arrays: Array, axis: int) -> Array:
    return np.concatenate(arrays, axis=axis)


def concatenate_vjp(xp: Any, ct: Any, y: Any, *arrays: Any, axis: int) -> Cotangents:
    shares, start = [], 0
    for array in arrays:
        shares.append(xp.part(ct, array, start, axis=axis))
        start = xp.dim(array, axis) + start
    return tuple(shares)


def joined(*shapes: Shape, axis: int) -> Shape:
    (place,) = places(axis, len(shapes[0]))
    other_lengths = {(*shape[:place], *shape[place + 1 :]) for shape in shapes}
    if len(other_lengths) > 1 or len({len(shape) for shape in shapes}) > 1:
        raise ValueError(f"the shapes {shapes} differ beside axis {axis}")
    return in_place_of(shapes[0], axis, sum(shape[place] for shape in shapes))


def stack(*arrays: Array, axis: int) -> Array:
    return np.stack(arrays, axis=axis)


def stacked(*shapes: Shape, axis: int) -> Shape:
    if len(set(shapes)) > 1:
        raise ValueError(f"a stack of the shapes {shapes}")
    (place,) = places(axis, len(shapes[0]) + 1)
    return (*shapes[0][:place], len(shapes), *shapes[0][place:])


def stack_vjp(xp: Any, ct: Any, y: Any, *arrays: Any, axis: int) -> Cotangents:
    return tuple(xp.squeeze(xp.take(ct, (i,), axis=axis), axis=axis) for i in range(len(arrays)))


WIDTHS = Attr(are_widths)
PAD = rearrangement(
    "pad",
    pad,
    pad_vjp,
    "A border of one value along the last axes, as (before, after) pairs.",
    shape_of=padded_shape,
    widths=WIDTHS,
    fill=number(0.0, 5.0, -1.5),
    composed=True,
    degree=filled_with_zero,
    copies=padded,
)


def joint(name: str, numpy: Any, vjp: Any, doc: str, **fields: Any) -> Op:
    fields |= {"composed": True, "degree": linear, "on_bools": "numbers", "copies": added}
    fields |= {"integer": True, "result": reshaped}
    return op(name, "*arrays", numpy=numpy, vjp=vjp, doc=doc, **fields)


CONCATENATE = joint(
    "concatenate",
    concatenate,
    concatenate_vjp,
    "Arrays one after the other along an axis.",
    shape_of=joined,
    axis=AXIS,
)
STACK = joint(
    "stack",
    stack,
    stack_vjp,
    "Arrays of one shape along a new axis.",
    shape_of=stacked,
    axis=NEW_AXIS,
)
