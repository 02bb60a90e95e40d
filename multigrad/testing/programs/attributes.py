"""Which rows take part in programs, and what values their attributes may have: an attribute's name says it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from multigrad.ir import ops
from multigrad.ir import shapes as shape_rows
from multigrad.ir.constants import freeze
from multigrad.ir.ops import Op
from multigrad.ir.types import FLOATS, INT32, T

Draw = Callable[[Any], Any]
Shape = tuple[int, ...]

# Rows that take no part, and why.
LEFT_OUT: dict[Op, str] = {}
# Reductions and the like that take several axes, or None for all of them.
MANY_AXES = (ops.SOFTMAX, ops.LOG_SOFTMAX, ops.FLIP, ops.QUANTILE_WEIGHTS)
NO_AXIS = (ops.ARGMAX_MASK, ops.ARGMIN_MASK)
# To reductions and orders a scalar is one element along any axis; to these it is not.
NEED_AN_AXIS = {row for row in vars(shape_rows).values() if isinstance(row, Op)} - {
    ops.FLIP,
    ops.ROLL,
}


class Refused(Exception):
    """A step that means nothing."""


def choice(*values: Any) -> Callable[..., Any]:
    def pick(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> Any:
        return draw(st.sampled_from(values))

    return pick


def pick_axis(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> Any:
    rank = len(shapes[0]) + (op in (ops.EXPAND_DIMS, ops.STACK))
    one = draw(st.integers(-max(rank, 1), max(rank, 1) - 1))
    if op is ops.ROLL and isinstance(drawn["shift"], tuple):
        return (
            (one, *(one + 1 if one < 0 else one - 1,))
            if rank > 1 and one not in (-1, 0)
            else (0, 1)
        )
    if op is ops.SQUEEZE:
        ones = tuple(i for i, n in enumerate(shapes[0]) if n == 1)
        return draw(st.sampled_from([None, *ones, ones]))
    if rank == 0 and op in NEED_AN_AXIS:
        raise Refused
    several = "keepdims" in op.attrs or op in MANY_AXES
    if not several:
        return draw(st.sampled_from([one, None])) if op in (*NO_AXIS, ops.ROLL) else one
    pairs = [(i, j) for i in range(rank) for j in range(-rank, rank) if i != j % rank]
    return draw(st.sampled_from([one, None, *pairs[:4]]))


def pick_dtype(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> Any:
    if op is ops.CAST:
        return draw(st.sampled_from([T, INT32, *FLOATS]))
    return draw(st.sampled_from([T]))


def pick_shape(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> Shape:
    shape = shapes[0]
    if op is ops.BROADCAST_TO_SHAPE:
        wide = tuple(3 if n == 1 else n for n in shape)
        return draw(st.sampled_from([wide, (2, *wide), shape]))
    size = math.prod(shape)
    known = [(size, 1), shape[::-1], (1, *shape)]
    return draw(st.sampled_from([(-1,), *known, (2, -1), (-1, 3), (1, -1)]))


def pick_axes(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> Any:
    order = draw(st.permutations(range(len(shapes[0]))))
    return draw(st.sampled_from([tuple(order), None]))


def pick_place(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> int:
    rank = max(len(shapes[0]), 1)
    return draw(st.integers(-rank, rank - 1))


def pick_index(draw: Draw, op: Op, shapes: Sequence[Shape], drawn: dict[str, Any]) -> Any:
    items = [
        (None, None, None), 0, -1, (1, None, None), (None, -1, None), (None, None, -1),
        (None, None, 2), (3, 0, -2), None, "...", (5, None, None),
    ]  # fmt: skip
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


ATTRS: dict[str, Callable[..., Any]] = {
    "axis": pick_axis, "keepdims": choice(False, True), "correction": choice(0, 1, 0.5),
    "ord": choice(2, 1, 3, 0.5, math.inf), "q": choice(0.5, 0.0, 0.25, 0.3, 1.0), "n": choice(1, 2),
    "slope": choice(0.01, 0.3, 0.0), "alpha": choice(1.0, 1.5, 0.5), "approximate": choice(False, True),
    "b": choice(4.0, 0.0, 1.0), "lambd": choice(0.5, 2.0, 0.0), "threshold": choice(0.5, -1.0),
    "default": choice(20.0, 0.0), "min": choice(-1.0, -2.0), "max": choice(1.0, 0.5),
    "nan": choice(0.0, 7.0), "posinf": choice(None, 1.0), "neginf": choice(None, -2.0),
    "dtype": pick_dtype, "shape": pick_shape, "axes": pick_axes, "axis1": pick_place,
    "axis2": pick_place, "source": pick_place, "destination": pick_place,
    "shift": choice(1, -2, (1, 2)), "offset": choice(0, 1, -1), "index": pick_index,
    "indices": pick_indices, "position": choice(0, 1), "repetitions": pick_repetitions,
    "repeats": choice(2, 1, 3), "widths": pick_widths, "fill": choice(0.0, 5.0, -1.5),
    "k": choice(1, 2, 0, 9), "reverse": choice(False, True), "descending": choice(False, True),
    "subscripts": pick_subscripts, "value": pick_array,
}  # fmt: skip
KINDS = ("float", "same", "bool", "where", "raw", "int")


def takes_part(op: Op) -> bool:
    """Whether programs can be made of a row from its declaration alone."""
    return op not in LEFT_OUT and op.coerce in KINDS and set(op.attrs) <= set(ATTRS)


TAKING_PART = tuple(filter(takes_part, ops.CALLABLE_OPS))
