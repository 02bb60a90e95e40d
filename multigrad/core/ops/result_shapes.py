"""Shapes of results, computed from the operands' shapes and the attributes.

A row has a formula in `shape_of`, or its result rule implies one. A formula returns the shape that
the NumPy function gives, and raises where that raises, but reads no numbers. Views need none: their
NumPy function costs nothing on an array of stride 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...errors import GradientError
from ..ir import results
from ..ir.op import ResultRule
from .numerics import Axis

Shape = tuple[int, ...]
ShapeRule = Callable[..., Shape]


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


def in_place_of(x: Shape, axis: int, *lengths: int) -> Shape:
    """Return a shape with other lengths instead of one axis."""
    (place,) = places(axis, len(x))
    return (*x[:place], *lengths, *x[place + 1 :])


# --- by the result rule --------------------------------------------------------------------------


def broadcast(*shapes: Shape, **attrs: Any) -> Shape:
    distinct = set(shapes)
    return shapes[0] if len(distinct) == 1 else np.broadcast_shapes(*distinct)


def first(x: Shape, *others: Shape, axis: Axis = None, **attrs: Any) -> Shape:
    """Return the shape of the first operand; a scalar has one element along any axis."""
    if x and axis is not None:
        places(axis, len(x))
    return x


def like_drawn(key: Shape, x: Shape, *params: Shape) -> Shape:
    return broadcast(x, *params)


def reduced(x: Shape, *, axis: Axis, keepdims: bool, **attrs: Any) -> Shape:
    """Return the shape without the axes, or with ones there; a scalar has none."""
    if not x:
        return x
    axes = places(axis, len(x))
    if keepdims:
        return tuple([1 if i in axes else n for i, n in enumerate(x)])
    return tuple([n for i, n in enumerate(x) if i not in axes])


def of_value(like: Shape, *, value: Any, **attrs: Any) -> Shape:
    return tuple(np.shape(value))


# Result rules that determine a shape. An op with another rule has a formula of its own, or runs on
# an array of stride 0.
BY_RESULT: Mapping[ResultRule, ShapeRule] = {
    **dict.fromkeys(results.OWN_ELEMENTS, broadcast),
    results.cast_to: first,
    results.filled: first,
    results.same: first,
    results.kept: first,
    results.called: first,
    results.drawn: like_drawn,
    results.reduced: reduced,
    results.of_dtype: of_value,
}

# --- of single rows ------------------------------------------------------------------------------


def halved(x: Shape, *, axis: int, **attrs: Any) -> Shape:
    n = x[places(axis, len(x))[0]]
    if n % 2:
        raise ValueError(f"axis {axis} of length {n} has no halves")
    return in_place_of(x, axis, n // 2)


def summed_to(x: Shape, like: Shape) -> Shape:
    """Return the shape of `like`, or raise GradientError if x was not broadcast from it."""
    lead = len(x) - len(like)
    if lead < 0 or any(n not in (1, m) for n, m in zip(like, x[lead:], strict=True)):
        raise GradientError(
            f"a gradient of shape {x} cannot be summed to the expected shape {like} of its argument"
        )
    return like
