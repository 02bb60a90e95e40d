"""Ops that put elements in another order or shape, and the triangles of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.ir.op import AXES, REQUIRED, SHAPE, Attr, Op, are_integers, is_axis, kept, optional
from ...core.ops.numerics import Array, reshape
from ...core.ops.shapes import Shape, rearrangement, shaped
from ...core.ops.table import Cotangents, moved_by

MOVED = Attr(is_axis, (), REQUIRED, "Any", "axes_of")
PLACES = Attr(optional(are_integers))
SHIFT = Attr(is_axis, (1, -2, (1, 2)))


def is_integer(value: object) -> bool:
    return type(value) is int


OFFSET = Attr(is_integer, (0, 1, -1))
PLACE = Attr(is_integer, (), REQUIRED, "int", "one_axis")


def permute_dims_vjp(xp: Any, ct: Any, y: Any, x: Any, *, axes: Any) -> Cotangents:
    if axes is None:
        return (xp.permute_dims(ct, None),)
    # The inverse permutation.
    places = [axis % len(axes) for axis in axes]
    return (xp.permute_dims(ct, tuple(places.index(i) for i in range(len(axes)))),)


def flip(x: Array, *, axis: Any) -> Array:
    # NumPy refuses axis 0 of a scalar; torch takes it.
    return np.flip(x, None if np.ndim(x) == 0 else axis)


def roll(x: Array, *, shift: Any, axis: Any) -> Array:
    return np.roll(x, shift, None if np.ndim(x) == 0 else axis)


def roll_vjp(xp: Any, ct: Any, y: Any, x: Any, *, shift: Any, axis: Any) -> Cotangents:
    shifts = tuple(-n for n in shift) if isinstance(shift, tuple) else -shift
    return (xp.roll(ct, shifts, axis=axis),)


PERMUTE_DIMS = rearrangement(
    "permute_dims",
    np.transpose,
    permute_dims_vjp,
    "Axes in another order; None reverses them.",
    axes=PLACES,
    composed=True,
    view="always",
)
SWAPAXES = rearrangement(
    "swapaxes",
    np.swapaxes,
    moved_by("swapaxes"),
    "Two axes exchanged.",
    axis1=PLACE,
    axis2=PLACE,
    view="always",
)
MOVEAXIS = rearrangement(
    "moveaxis",
    np.moveaxis,
    "xp.moveaxis(ct, destination, source)",
    "Axes moved to other positions; the others keep their order.",
    source=MOVED,
    destination=MOVED,
    view="always",
)
FLIP = rearrangement(
    "flip",
    flip,
    moved_by("flip"),
    "x reversed along axes (None: all).",
    kept,
    axis=AXES,
    view="sometimes",
)
ROLL = rearrangement(
    "roll",
    roll,
    roll_vjp,
    "Shifted along axes, the end going to the front.",
    kept,
    shift=SHIFT,
    axis=AXES,
    composed=True,
)


def tril(x: Array, *, offset: int) -> Array:
    return np.where(_below(x, offset), x, x.dtype.type(0))


def triu(x: Array, *, offset: int) -> Array:
    return np.where(_below(x, offset - 1), x.dtype.type(0), x)


def _below(x: Array, offset: int) -> Array:
    rows, columns = x.shape[-2:]
    return np.arange(columns) - np.arange(rows)[:, None] <= offset


def with_matrices(x: Shape, **attrs: Any) -> Shape:
    """Return the shape of x, or raise ValueError if it holds no matrices."""
    if len(x) < 2:
        raise ValueError(f"matrices in the last two axes are needed, not shape {x}")
    return x


def triangle(name: str, numpy: Any, vjp: Any, doc: str) -> Op:
    fields = {"offset": OFFSET, "composed": True, "shape_of": with_matrices}
    return rearrangement(name, numpy, vjp, doc, kept, **fields)


TRIL = triangle("tril", tril, "xp.tril(ct, offset)", "Zero above a diagonal of the last two axes.")
TRIU = triangle("triu", triu, "xp.triu(ct, offset)", "Zero below a diagonal of the last two axes.")

# --- the same elements in another shape -----------------------------------------------------------


def reshape_like(x: Array, like: Array) -> Array:
    return np.reshape(x, np.shape(like))


RESHAPE = rearrangement(
    "reshape",
    reshape,
    "xp.reshape_like(ct, x)",
    "The same elements in another shape; one length may be -1.",
    shape=SHAPE,
    composed=True,
    view="sometimes",
)
RESHAPE_LIKE = shaped(
    "reshape_like",
    reshape_like,
    moved_by("reshape_like", 0),
    "The same elements in the shape of `like`.",
    shaped_like=1,
    view="sometimes",
)
SQUEEZE = rearrangement(
    "squeeze",
    np.squeeze,
    "xp.reshape_like(ct, x)",
    "x without axes of length 1 (None: without all of them).",
    axis=AXES,
    view="always",
)
