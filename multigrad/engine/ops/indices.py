"""Ops on computed indices: argmax and argsort, reading and adding along an axis.

Indices are int64 and count from 0. The name of an op says what happens with one that is negative or
too large. In most ops it is the user's error, which NumPy, PyTorch and TensorFlow's CPU kernels
raise; JAX reads NaN and drops writes. An op with `_inside` reads zero and drops writes; one with
`_nearest` reads the first or last element and, as in JAX, sends no gradient back. So an op and its
VJP agree at the edge of their domain.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.ir.op import AXIS, INT64, INTEGERS, UNKNOWN, Op, Type, flag, need_tensors, reduce_shape
from ...core.ops.numerics import Array, wider
from ...core.ops.properties import in_first
from ...core.ops.shapes import Shape, reduced
from ...core.ops.table import Composed, moved_by, op, zero
from ...errors import PlaceError
from .indexing import fitted, in_place_of, put_back
from .ordering import AXIS_OR_NONE, lifted, order
from .result_shapes import first, multiplied


def place(name: str, numpy: Any, doc: str, **fields: Any) -> Op:
    """Declare an op of numbers that returns indices."""
    return op(name, "x", numpy=numpy, vjp=zero, doc=doc, **fields)


@lifted
def argmax(x: Array, *, axis: int | None, keepdims: bool) -> Array:
    return np.asarray(np.argmax(wider(x), axis=axis, keepdims=keepdims), np.int64)


@lifted
def argmin(x: Array, *, axis: int | None, keepdims: bool) -> Array:
    return np.asarray(np.argmin(wider(x), axis=axis, keepdims=keepdims), np.int64)


@lifted
def argsort(x: Array, *, axis: int, descending: bool) -> Array:
    return order(x, axis, descending).astype(np.int64)


def index_reduced(x: Type, *, axis: Any, keepdims: bool) -> Type:
    need_tensors(x)
    return Type("tensor", INT64, reduce_shape(x.shape, axis, keepdims))


def counted(x: Type, **attrs: Any) -> Type:
    need_tensors(x)
    return Type("tensor", INT64, x.shape)


EXTREME = {"result": index_reduced, "shape_of": reduced, "integer": True}
EXTREME |= {"axis": AXIS_OR_NONE, "keepdims": flag(False)}
ARGMAX = place("argmax", argmax, "The index of the first of the largest; NaN is larger.", **EXTREME)
ARGMIN = place(
    "argmin", argmin, "The index of the first of the smallest; NaN is smaller.", **EXTREME
)
ARGSORT = place(
    "argsort",
    argsort,
    "The indices that sort x along an axis, stable; NaN is larger than every number.",
    result=counted,
    shape_of=first,
    integer=True,
    axis=AXIS,
    descending=flag(False),
)


def gathered(x: Type, indices: Type, **attrs: Any) -> Type:
    need_tensors(x)
    if indices.kind != "tensor" or indices.dtype not in INTEGERS:
        raise TypeError(f"its indices must be integers, not {indices}")
    return Type("tensor", x.dtype, indices.shape)


def selected(x: Type, indices: Type, **attrs: Any) -> Type:
    return Type("tensor", gathered(x, indices).dtype, UNKNOWN)


def placed(x: Type, indices: Type, like: Type, **attrs: Any) -> Type:
    need_tensors(like)
    return Type("tensor", gathered(x, indices).dtype, like.shape)


def puts(indices: Type, like: Type, **attrs: Any) -> Type:
    return placed(indices, indices, like)


def at_places(name: str, args: str, numpy: Any, vjp: Any, doc: str, **fields: Any) -> Op:
    """Declare an op whose operand `indices` holds positions along an axis of another operand."""
    fields = {"degree": in_first, "axis": AXIS, "in_vjps": True, **fields}
    return op(name, args, coerce="indices", numpy=numpy, vjp=vjp, doc=doc, **fields)


def inside(indices: Any, length: int) -> Array:
    """Return indices as an array, or raise PlaceError if one is not below the length."""
    indices = np.asarray(indices)
    if indices.size and (indices.min() < 0 or indices.max() >= length):
        worst = indices.min() if indices.min() < 0 else indices.max()
        raise PlaceError(f"index {worst} is out of bounds for an axis of {length} elements")
    return indices


@lifted
def take_along(x: Array, indices: Array, *, axis: int) -> Array:
    # Other axes must have equal lengths: NumPy's function broadcasts them, torch's cuts them.
    check_axes(x.shape, indices.shape, axis)
    return np.take_along_axis(x, inside(indices, x.shape[axis]), axis)


def check_axes(x: Shape, indices: Shape, axis: int) -> None:
    """Check that two shapes differ in the length of one axis at most; scalars have one element."""
    if (x or indices) and in_place_of(x, axis, 1) != in_place_of(indices, axis, 1):
        raise ValueError(f"shapes {x} and {indices} differ beside axis {axis}")


def taken_along(x: Shape, indices: Shape, *, axis: int) -> Shape:
    check_axes(x, indices, axis)
    return indices


def put_along(x: Shape, indices: Shape, like: Shape, *, axis: int) -> Shape:
    check_axes(like, indices, axis)
    return fitted(x, indices, like)


def put_last(indices: Shape, like: Shape, *, axis: int) -> Shape:
    check_axes(like, indices, axis)
    return like


@lifted
def untake_along(x: Array, indices: Array, like: Array, *, axis: int) -> Array:
    check_axes(np.shape(like), indices.shape, axis)
    values = wider(x)
    sums = np.zeros(np.shape(like), values.dtype)
    # Open grids for all axes; the one of `axis` is replaced by the indices.
    rows = list(np.indices(indices.shape, sparse=True))
    rows[axis] = inside(indices, sums.shape[axis])
    np.add.at(sums, tuple(rows), values)
    return sums.astype(x.dtype)


def take_at(x: Array, indices: Array, *, axis: int) -> Array:
    return np.take(x, inside(indices, x.shape[axis]), axis=axis)


def taken_at(x: Shape, indices: Shape, *, axis: int) -> Shape:
    return in_place_of(x, axis, *indices)


def untake_at(x: Array, indices: Array, like: Array, *, axis: int) -> Array:
    shape = np.shape(like)
    axis = axis % len(shape)
    index_axes = tuple(range(np.ndim(indices)))
    values = np.moveaxis(wider(x), tuple(axis + i for i in index_axes), index_axes)
    sums = np.zeros((shape[axis], *shape[:axis], *shape[axis + 1 :]), values.dtype)
    np.add.at(sums, inside(indices, shape[axis]), values)
    return np.moveaxis(sums, 0, axis).astype(x.dtype)


# Ops whose indices may be out of range, made of ops whose indices may not.
def length_along(xp: Any, x: Any, axis: int) -> Any:
    length = xp.dim(x, axis=axis)
    # Indices are int64, and also what they are compared with.
    return length if isinstance(length, int) else xp.astype(length, dtype="int64")


def are_inside(xp: Any, indices: Any, x: Any, axis: int) -> Any:
    """Return the mask of the indices that lie within x's length along an axis."""
    return (indices >= 0) & (indices < length_along(xp, x, axis))


def zeros_outside(xp: Any, mask: Any, x: Any, axis: int | None = None) -> Any:
    """Return x where a mask holds, else zeros; with an axis, the mask is of slices along it."""
    if axis is not None:
        mask = mask[(..., *(None,) * (len(x.shape) - axis - len(mask.shape)))]
    return xp.where(mask, x, xp.full_like(x, 0, dtype=None))


def no_slices(xp: Any, x: Any, indices: Any, axis: int) -> Any:
    """Return zeros for slices along an axis without elements."""
    # The sum of no elements: a zero of x's dtype, on its device.
    zero = xp.astype(xp.sum(x, axis=None, keepdims=False), dtype=x.dtype)
    return xp.broadcast_to(zero, shape=(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def take_inside(xp: Any, x: Any, indices: Any, *, axis: int) -> Any:
    axis = axis % len(x.shape)
    if x.shape[axis] == 0:
        return no_slices(xp, x, indices, axis)
    mask = are_inside(xp, indices, x, axis)
    slices = xp.take_at(x, zeros_outside(xp, mask, indices), axis=axis)
    return zeros_outside(xp, mask, slices, axis)


def untake_inside(xp: Any, x: Any, indices: Any, like: Any, *, axis: int) -> Any:
    axis = axis % len(like.shape)
    if like.shape[axis] == 0:
        return xp.astype(like, dtype=x.dtype)
    mask = are_inside(xp, indices, like, axis)
    values = zeros_outside(xp, mask, x, axis)
    return xp.untake_at(values, zeros_outside(xp, mask, indices), like, axis=axis)


def take_nearest(xp: Any, x: Any, indices: Any, *, axis: int) -> Any:
    axis = axis % len(x.shape)
    if x.shape[axis] == 0:
        return no_slices(xp, x, indices, axis)
    zeros, last = xp.full_like(indices, 0, dtype=None), length_along(xp, x, axis) - 1
    capped = xp.where(indices > last, zeros + last, indices)
    return xp.take_at(x, xp.where(capped < 0, zeros, capped), axis=axis)


def take_clipped(x: Array, indices: Array, *, axis: int) -> Array:
    if not x.shape[axis]:
        return np.zeros(taken_at(x.shape, np.shape(indices), axis=axis), x.dtype)
    # Not by `take_nearest`: a length may exceed what a narrow dtype of indices can hold.
    return np.take(x, indices, axis=axis, mode="clip")


@lifted
def last_put(indices: Array, like: Array, *, axis: int) -> Array:
    check_axes(np.shape(like), indices.shape, axis)
    last = np.full(np.shape(like), -1, np.int64)
    rows = list(np.indices(indices.shape, sparse=True))
    places = rows[axis]
    rows[axis] = inside(indices, last.shape[axis])
    # Of positions with the same index the last one wins.
    np.maximum.at(last, tuple(rows), np.broadcast_to(places, indices.shape))
    return last


TAKE_ALONG = at_places(
    "take_along",
    "x indices",
    take_along,
    moved_by("untake_along", 1, 0),
    "The elements of x at indices along an axis, separate for each row.",
    result=gathered,
    shape_of=taken_along,
)
UNTAKE_ALONG = at_places(
    "untake_along",
    "x indices like",
    untake_along,
    moved_by("take_along", 1),
    "Zeros in the shape of `like`, x added at indices along an axis, separate for each row.",
    result=placed,
    shape_of=put_along,
    shape_only=(2,),
)
# Attributes of the ops that add slices back, and of those that read slices.
BACK = {"result": placed, "shape_of": put_back(taken_at), "shape_only": (2,)}
AT = {"result": selected, "shape_of": taken_at, "copies": multiplied}
TAKE_AT = at_places(
    "take_at",
    "x indices",
    take_at,
    moved_by("untake_at", 1, 0),
    "The slices of x at indices along an axis, which is replaced by the axes of the indices.",
    **AT,
)
UNTAKE_AT = at_places(
    "untake_at",
    "x indices like",
    untake_at,
    moved_by("take_at", 1),
    "Zeros in the shape of `like`, slices of x added at indices along an axis.",
    **BACK,
)
TAKE_INSIDE = at_places(
    "take_inside",
    "x indices",
    Composed(take_inside, rounds=False),
    moved_by("untake_inside", 1, 0),
    "The slices of x at indices along an axis; zeros for an index that lies outside.",
    **AT,
)
TAKE_NEAREST = at_places(
    "take_nearest",
    "x indices",
    take_clipped,
    moved_by("untake_inside", 1, 0),
    "The slices of x at indices along an axis; the nearest one for an index that lies outside, "
    "zeros where there is none.",
    **AT,
    made_of=take_nearest,
    rounds=False,
)
UNTAKE_INSIDE = at_places(
    "untake_inside",
    "x indices like",
    Composed(untake_inside, rounds=False),
    moved_by("take_inside", 1),
    "Zeros in the shape of `like`, slices of x added at indices along an axis; those are dropped "
    "whose index lies outside.",
    **BACK,
)
LAST_PUT = at_places(
    "last_put",
    "indices like",
    last_put,
    zero,
    "For each place of `like` along an axis, where it stands last among indices; -1: nowhere.",
    result=puts,
    shape_of=put_last,
    degree=None,
    shape_only=(1,),
)
