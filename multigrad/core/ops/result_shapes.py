"""Shapes of results, computed from the operands' shapes and the attributes.

A row has a formula in `shape_of`, or its result rule implies one. A formula returns the shape that
the NumPy function gives, and raises where that raises, but reads no numbers. Views need none: their
NumPy function costs nothing on an array of stride 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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


def with_matrices(x: Shape, **attrs: Any) -> Shape:
    """Return the shape of x, or raise ValueError if it holds no matrices."""
    if len(x) < 2:
        raise ValueError(f"matrices in the last two axes are needed, not shape {x}")
    return x


def in_order(values: Shape, x: Shape, *, axis: Axis, **attrs: Any) -> Shape:
    """Return the shape of values in an order of x, or taken by a mask of it, along an axis."""
    return first(broadcast(values, x), axis=axis)


def square(x: Shape, **attrs: Any) -> Shape:
    """Return the shape of x, or raise ValueError if it holds no square matrices."""
    if len(x) < 2 or x[-1] != x[-2]:
        raise ValueError(f"a square matrix in the last two axes is needed, not shape {x}")
    return x


def of_each_matrix(x: Shape) -> Shape:
    return square(x)[:-2]


def kept_by_turns(*shapes: Shape, position: int, **attrs: Any) -> Shape:
    return shapes[position]


def of_value(like: Shape, *, value: Any, **attrs: Any) -> Shape:
    return tuple(np.shape(value))


def contracted(*shapes: Shape, subscripts: str) -> Shape:
    """Return the shape of an einsum: its result's letters, and the batch where `...` is."""
    terms, _, result = subscripts.partition("->")
    lengths: dict[str, int] = {}
    batches: list[Shape] = []
    for term, shape in zip(terms.split(","), shapes, strict=True):
        head, dots, tail = term.partition("...")
        count = len(head) + len(tail)
        if len(shape) < count or (len(shape) > count and not dots):
            raise ValueError(f"{term!r} in {subscripts!r} for the shape {shape}")
        end = len(shape) - len(tail)
        batches.append(shape[len(head) : end])
        for letter, n in zip(head + tail, (*shape[: len(head)], *shape[end:]), strict=True):
            length = lengths.setdefault(letter, n)
            # A length of 1 broadcasts.
            if length == 1:
                lengths[letter] = n
            elif n not in (1, length):
                raise ValueError(f"{letter!r} in {subscripts!r} is {length} and {n} long")
    head, dots, tail = result.partition("...")
    batch = np.broadcast_shapes(*batches)
    if batch and not dots:
        raise ValueError(f"the result of {subscripts!r} has no place for the axes of '...'")
    return (*(lengths[n] for n in head), *batch, *(lengths[n] for n in tail))


# Result rules that determine a shape. An op with another rule has a formula of its own, or runs on
# an array of stride 0.
BY_RESULT: Mapping[ResultRule, ShapeRule] = {
    **dict.fromkeys(results.OWN_ELEMENTS, broadcast),
    results.cast_to: first,
    results.filled: first,
    results.same: first,
    results.kept: first,
    results.masked: first,
    results.counted: first,
    results.called: first,
    results.reordered: in_order,
    results.held: in_order,
    results.drawn: like_drawn,
    results.reduced: reduced,
    results.index_reduced: reduced,
    results.over_matrices: of_each_matrix,
    results.contracted: contracted,
    results.of_dtype: of_value,
}

# --- of single rows ------------------------------------------------------------------------------


def product(a: Shape, b: Shape) -> Shape:
    # The last axis but one of b is contracted, or the only one of a vector.
    if not a or not b or a[-1] != b[max(len(b) - 2, 0)]:
        raise ValueError(f"matmul of the shapes {a} and {b}")
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def taken(x: Shape, *, indices: Sequence[int], axis: int) -> Shape:
    (place,) = places(axis, len(x))
    bad_indices = [i for i in indices if not -x[place] <= i < x[place]]
    if bad_indices:
        raise IndexError(f"index {bad_indices[0]} for axis {axis}, which is {x[place]} long")
    return in_place_of(x, axis, len(indices))


def taken_at(x: Shape, indices: Shape, *, axis: int) -> Shape:
    return in_place_of(x, axis, *indices)


def halved(x: Shape, *, axis: int, **attrs: Any) -> Shape:
    n = x[places(axis, len(x))[0]]
    if n % 2:
        raise ValueError(f"axis {axis} of length {n} has no halves")
    return in_place_of(x, axis, n // 2)


def as_long_as(x: Shape, like: Shape, start: Shape, *, axis: int) -> Shape:
    """Return the shape of x cut along an axis to the length of `like`."""
    return in_place_of(x, axis, min(like[axis], x[axis]))


def put(x: Shape, part: Shape, whole: Shape) -> Shape:
    """Return the shape of `whole`, of which x fills a part."""
    # NumPy's assignment ignores leading axes of length 1.
    shape = x
    while len(shape) > len(part) and shape[0] == 1:
        shape = shape[1:]
    if np.broadcast_shapes(shape, part) != part:
        raise ValueError(f"shape {x} is put where {part} is free")
    return whole


def put_from(x: Shape, like: Shape, start: Shape, *, axis: int) -> Shape:
    return put(x, in_place_of(like, axis, x[axis]), like)


def put_back(takes: ShapeRule) -> ShapeRule:
    """Return the formula of an op whose last operand is `like`, where its x fits into what the op
    of another formula takes from that.
    """

    def shape(x: Shape, *others: Shape, **attrs: Any) -> Shape:
        *arguments, like = others
        return put(x, takes(like, *arguments, **attrs), like)

    return shape


def put_into(takes: ShapeRule) -> ShapeRule:
    """Return the formula of an op that puts a value into what the op of another formula takes."""

    def shape(x: Shape, value: Shape, **attrs: Any) -> Shape:
        return put(value, takes(x, **attrs), x)

    return shape


def sum_of(copies: ShapeRule) -> ShapeRule:
    """Return the formula of an op that sums the copies which the op of another formula makes."""

    def shape(x: Shape, like: Shape, **attrs: Any) -> Shape:
        whole = copies(like, **attrs)
        if math.prod(x) != math.prod(whole):
            raise ValueError(f"shape {x} is no copies of {like}, which are {whole}")
        return like

    return shape


def tiled(x: Shape, *, repetitions: tuple[int, ...]) -> Shape:
    rank = max(len(x), len(repetitions))
    pairs = zip(filled_up(x, rank), filled_up(repetitions, rank), strict=True)
    return tuple([n * copies for n, copies in pairs])


def filled_up(lengths: Sequence[int], rank: int) -> tuple[int, ...]:
    return (*(1,) * (rank - len(lengths)), *lengths)


def repeated(x: Shape, *, repeats: int, axis: int) -> Shape:
    return in_place_of(x, axis, x[places(axis, len(x))[0]] * repeats)


def joined(*shapes: Shape, axis: int) -> Shape:
    (place,) = places(axis, len(shapes[0]))
    other_lengths = {(*shape[:place], *shape[place + 1 :]) for shape in shapes}
    if len(other_lengths) > 1 or len({len(shape) for shape in shapes}) > 1:
        raise ValueError(f"the shapes {shapes} differ beside axis {axis}")
    return in_place_of(shapes[0], axis, sum(shape[place] for shape in shapes))


def stacked(*shapes: Shape, axis: int) -> Shape:
    if len(set(shapes)) > 1:
        raise ValueError(f"a stack of the shapes {shapes}")
    (place,) = places(axis, len(shapes[0]) + 1)
    return (*shapes[0][:place], len(shapes), *shapes[0][place:])


def summed_to(x: Shape, like: Shape) -> Shape:
    """Return the shape of `like`, or raise GradientError if x was not broadcast from it."""
    lead = len(x) - len(like)
    if lead < 0 or any(n not in (1, m) for n, m in zip(like, x[lead:], strict=True)):
        raise GradientError(
            f"a gradient of shape {x} cannot be summed to the expected shape {like} of its argument"
        )
    return like
