"""Which rows take part in programs, and what values their attributes may have: the row's samples,
or what that kind of attribute may be for the shapes of the operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from multigrad.core import ops
from multigrad.core.ir import op as attributes
from multigrad.core.ir.graph import freeze
from multigrad.core.ir.op import FLOATS, INT32, INT64, SMALL, Attr, Op, T

from ..declared import NEED_AN_AXIS, domain_of

Draw = Callable[[Any], Any]
Shape = tuple[int, ...]

# Rows that take no part, and why.
LEFT_OUT: dict[Op, str] = {
    row: "an operand falls along its axis, which a program does not see to"
    for row in ops.CALLABLE_OPS
    if any(domain_of(row, i).falls for i in range(len(row.operands)))
} | {
    **{row: "it needs shards" for row in vars(ops.collectives).values() if isinstance(row, Op)},
    ops.UNTAKE_INSIDE: "the VJP of take_inside, whose edges tests/edges holds",
    ops.FFT: "its parts lie in an axis of two",
    ops.NEXTAFTER: "its steps are those of a dtype, which float64 does not have",
    **dict.fromkeys((ops.SVD, ops.EIGH, ops.QR), "the signs of its vectors are the backend's"),
    **dict.fromkeys((ops.EIGVALSH, ops.SVDVALS), "NumPy refuses a matrix with NaN"),
    **dict.fromkeys((ops.LU_PIVOTS, ops.LU_PERMUTATION), "rounding decides among near pivots"),
}


class Refused(Exception):
    """A step that means nothing."""


def pick_axis(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> Any:
    rank = len(shapes[0])
    if rank == 0 and op in NEED_AN_AXIS:
        raise Refused
    return draw(st.integers(-max(rank, 1), max(rank, 1) - 1))


def pick_axis_or_none(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> Any:
    return draw(st.sampled_from([pick_axis(draw, op, shapes, drawn), None]))


def pick_new_axis(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> Any:
    rank = len(shapes[0]) + 1
    return draw(st.integers(-rank, rank - 1))


def pick_axes(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> Any:
    """One axis, two, or all of them."""
    rank = len(shapes[0])
    if op is ops.SQUEEZE:
        ones = tuple(i for i, n in enumerate(shapes[0]) if n == 1)
        return draw(st.sampled_from([None, *ones, ones]))
    one = pick_axis(draw, op, shapes, drawn)
    if op is ops.ROLL:
        if not isinstance(drawn["shift"], tuple):
            return draw(st.sampled_from([one, None]))
        return (one, one + 1 if one < 0 else one - 1) if one not in (-1, 0) else (0, 1)
    pairs = [(i, j) for i in range(rank) for j in range(-rank, rank) if i != j % rank]
    return draw(st.sampled_from([one, None, *pairs[:4]]))


def pick_dtype(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> Any:
    if op is ops.CAST:
        return draw(st.sampled_from([T, INT32, INT64, *SMALL, *FLOATS]))
    return draw(st.sampled_from([T]))


def pick_shape(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> Shape:
    shape = shapes[0]
    if op is ops.BROADCAST_TO_SHAPE:
        wide = tuple(3 if n == 1 else n for n in shape)
        return draw(st.sampled_from([wide, (2, *wide), shape]))
    size = int(np.prod(shape))
    known = [(size, 1), shape[::-1], (1, *shape)]
    return draw(st.sampled_from([(-1,), *known, (2, -1), (-1, 3), (1, -1)]))


def pick_order(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> Any:
    order = draw(st.permutations(range(len(shapes[0]))))
    return draw(st.sampled_from([tuple(order), None]))


def pick_place(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> int:
    rank = max(len(shapes[0]), 1)
    return draw(st.integers(-rank, rank - 1))


def pick_index(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> Any:
    items = [
        (None, None, None),
        0,
        -1,
        (1, None, None),
        (None, -1, None),
        (None, None, -1),
        (None, None, 2),
        (3, 0, -2),
        None,
        "...",
        (5, None, None),
    ]
    index = draw(st.lists(st.sampled_from(items), min_size=1, max_size=3))
    return tuple(index) if index.count("...") < 2 else (index[0],)


def pick_indices(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> Any:
    return tuple(draw(st.lists(st.integers(-3, 2), min_size=1, max_size=4)))


def pick_repetitions(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> Any:
    return tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))


def pick_widths(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> Any:
    pair = st.tuples(st.integers(0, 2), st.integers(0, 2))
    return tuple(draw(st.lists(pair, min_size=1, max_size=2)))


def pick_array(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> Any:
    shape = draw(st.sampled_from([(1,), (), shapes[0], shapes[0][-1:]]))
    kind = draw(st.sampled_from([np.float32, np.float64, np.int64]))
    numbers = np.random.default_rng(draw(st.integers(0, 9))).normal(size=shape) * 3
    return freeze(np.asarray(numbers).astype(kind))


def pick_subscripts(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> str:
    """A letter per axis, the same one only for the same length."""
    letters: dict[str, int] = {}
    terms = []
    for shape in shapes:
        term = ""
        for length in shape:
            free = [c for c, n in letters.items() if n == length and c not in term]
            new = "abcdefghijklmnop"[len(letters)]
            letter = draw(st.sampled_from([*free, new]))
            letters[letter] = length
            term += letter
        terms.append(term)
    kept = draw(st.lists(st.sampled_from(sorted(letters) or [""]), unique=True, max_size=3))
    return f"{','.join(terms)}->{''.join(kept)}"


PICKS: dict[Attr, Callable[..., Any]] = {
    attributes.AXIS: pick_axis,
    ops.ordering.AXIS_OR_NONE: pick_axis_or_none,
    attributes.AXES: pick_axes,
    attributes.LAST_AXES: pick_axes,
    attributes.NEW_AXIS: pick_new_axis,
    ops.orders.PLACE: pick_place,
    ops.orders.MOVED: pick_place,
    ops.orders.PLACES: pick_order,
    attributes.DTYPE: pick_dtype,
    attributes.SHAPE: pick_shape,
    ops.indexing.INDEX: pick_index,
    ops.indexing.INDICES: pick_indices,
    ops.indexing.REPETITIONS: pick_repetitions,
    ops.indexing.WIDTHS: pick_widths,
    ops.products.SUBSCRIPTS: pick_subscripts,
    attributes.ANYTHING: pick_array,
}
KINDS = ("float", "same", "bool", "where", "raw", "int", "indices")


def pick(draw: Draw, op: Op, name: str, shapes: Sequence[Shape], drawn: dict[str, Any]) -> Any:
    """Draw an attribute, after those already drawn."""
    attr = op.attrs[name]
    if attr in PICKS:
        return PICKS[attr](draw, op, shapes, drawn)
    return draw(st.sampled_from(attr.samples))


def takes_part(op: Op) -> bool:
    """Return whether programs can be made of a row from its declaration alone."""
    known = all(attr.samples or attr in PICKS for attr in op.attrs.values())
    return op not in LEFT_OUT and op.coerce in KINDS and known


TAKING_PART = tuple(filter(takes_part, ops.CALLABLE_OPS))
