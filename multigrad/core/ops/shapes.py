"""Ops of shapes: broadcasting and its inverse, lengths, reshapes.

All attributes are static. A row and the rows of its VJP are closed under differentiation, which
never needs the rank: one capture serves all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import GradientError
from ..ir.graph import Node
from ..ir.op import (
    AXIS,
    NEW_AXIS,
    SHAPE,
    Op,
    ResultRule,
    expanded,
    integer,
    reshaped,
    shaped_like_second,
)
from .numerics import Array, Axis, widened
from .properties import linear
from .table import moved_by, op, zero

Shape = tuple[int, ...]


def places(axis: Axis, rank: int) -> tuple[int, ...]:
    """Return axes counted from the front; None means all of them."""
    if axis is None:
        return tuple(range(rank))
    axes = axis if isinstance(axis, tuple) else (axis,)
    for i in axes:
        if not -rank <= i < rank:
            raise np.exceptions.AxisError(i, rank)
    positions = tuple(i % rank for i in axes)
    if len(set(positions)) < len(positions):
        raise ValueError(f"an axis is named twice in {axis}")
    return positions


def reduced(x: Shape, *, axis: Axis, keepdims: bool, **attrs: Any) -> Shape:
    """Return the shape without the axes, or with ones there; a scalar has none."""
    if not x:
        return x
    axes = places(axis, len(x))
    if keepdims:
        return tuple([1 if i in axes else n for i, n in enumerate(x)])
    return tuple([n for i, n in enumerate(x) if i not in axes])


def rearrangement(
    name: str, numpy: Any, vjp: Any, doc: str, result: ResultRule = reshaped, **fields: Any
) -> Op:
    fields = {"coerce": "raw", "degree": linear, **fields}
    return op(name, "x", numpy=numpy, vjp=vjp, doc=doc, result=result, **fields)


def shaped(
    name: str, numpy: Any, vjp: Any, doc: str, operands: str = "x like", **fields: Any
) -> Op:
    """Declare an op whose second operand gives the result's shape."""
    fields = {"result": shaped_like_second, "degree": linear, "shape_only": (1,), **fields}
    return op(name, operands, coerce="raw", numpy=numpy, vjp=vjp, doc=doc, **fields)


def length_of(name: str, numpy: Any, doc: str, **fields: Any) -> Op:
    fields |= {"coerce": "raw", "composed": True, "shape_only": (0,)}
    return op(name, "x", numpy=numpy, vjp=zero, doc=doc, result=integer, **fields)


def summed_to(x: Shape, like: Shape) -> Shape:
    """Return the shape of `like`, or raise GradientError if x was not broadcast from it."""
    lead = len(x) - len(like)
    if lead < 0 or any(n not in (1, m) for n, m in zip(like, x[lead:], strict=True)):
        raise GradientError(
            f"a gradient of shape {x} cannot be summed to the expected shape {like} of its argument"
        )
    return like


@widened
def sum_to(x: Array, like: Array) -> Array:
    # Python numbers have no shape: they count as scalars.
    if x.shape == getattr(like, "shape", ()):
        return x
    shape = summed_to(x.shape, np.shape(like))
    lead = x.ndim - len(shape)
    # The leading axes that `like` lacks, and those where its length is 1 but x's is not.
    axes = (*range(lead), *(lead + i for i, n in enumerate(shape) if n == 1 != x.shape[lead + i]))
    return np.sum(x, axis=axes, keepdims=True).reshape(shape) if axes else x


def broadcast_to(x: Array, like: Array) -> Array:
    return np.broadcast_to(x, np.shape(like))


def filled(node: Node, sizes: Sequence[int]) -> int:
    return max(1, math.prod(abs(n) for n in node.attr("shape"))) * sizes[0]


SUM_TO = shaped(
    "sum_to",
    sum_to,
    moved_by("broadcast_to", 0),
    "x summed to the shape of `like`: undoes broadcasting.",
    shaped_like=1,
    shape_of=summed_to,
)
BROADCAST_TO = shaped(
    "broadcast_to",
    broadcast_to,
    moved_by("sum_to", 0),
    "x repeated to the shape of `like`.",
    composed=True,
    shaped_like=1,
    view="always",
)
BROADCAST_TO_SHAPE = rearrangement(
    "broadcast_to_shape",
    np.broadcast_to,
    "xp.sum_to(ct, x)",
    "x repeated to a static shape.",
    shape=SHAPE,
    xp="broadcast_to",
    composed=True,
    view="sometimes",
    copies=filled,
)


def dim(x: Array, *, axis: int) -> int:
    return np.shape(x)[axis]


def size(x: Array) -> int:
    return int(np.size(x))


DIM = length_of("dim", dim, "The length of one axis, an integer known at run time.", axis=AXIS)
SIZE = length_of("size", size, "The number of elements, an integer known at run time.")


EXPAND_DIMS = rearrangement(
    "expand_dims",
    np.expand_dims,
    "xp.sum(ct, axis=axis, keepdims=False)",
    "A new axis of length 1.",
    expanded,
    axis=NEW_AXIS,
    view="always",
)
