"""The shapes of results, as formulas of the operands' shapes; and how many copies of an input they
hold.

A row has a formula in `shape_of`, or its result rule implies one, `BY_RESULT`. A formula returns
the shape that the NumPy function gives, and raises where that raises, but reads no numbers. Views
need none: their NumPy function costs nothing on an array of stride 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...core.ir import op as results
from ...core.ir.graph import Node
from ...core.ir.op import Op, ResultRule
from ...core.ops.numerics import Axis
from ...core.ops.shapes import Shape, places, reduced

ShapeRule = Callable[..., Shape]


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


def formula_of(row: Op) -> ShapeRule | None:
    return row.shape_of or BY_RESULT.get(row.result)


def added(node: Node, copies: Sequence[int]) -> int:
    return sum(copies)


def multiplied(node: Node, copies: Sequence[int]) -> int:
    return math.prod(copies)
