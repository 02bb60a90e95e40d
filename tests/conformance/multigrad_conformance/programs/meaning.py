"""What an op means that has no meaning of its own here: its row's NumPy function, in float64.

Bounds come from moving its operands, element by element where the op is no function of each: what
the result wanders then is what an error may do, and how far a kernel may be off. An op that jumps
between the ends of what an operand may be, as a remainder, needs a meaning of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from multigrad.core.ir.op import PER_ELEMENT, Op, is_number

from ..differences import DESIGNED
from ..oracles import FLOAT64, finfo
from .bounded import BOOL, EXACT, WHOLE, Bounded, Function, difference, settle, way

Array = Any
Moves = list[tuple[Array, Array]]  # other values of an operand, and a mask of where they may stand
STEP = 2.0**-20
MOST = 16.0  # how much more than its largest operand counts, at a jump
STAND_INS = (np.nan, np.inf, -np.inf, 0.0, 1.0)
PATTERNS = 8


def by_meaning(
    op: Op,
    operands: Sequence[Bounded],
    attrs: dict[str, Any],
    dtype: Any,
    ulps: float = DESIGNED,
) -> Bounded:
    """Evaluate a row by its NumPy function, within some eps of what its condition allows."""
    whole = op.result not in PER_ELEMENT
    numbers = {
        name: float(np.asarray(value, dtype)) if is_rounded(op, name, dtype) else value
        for name, value in attrs.items()
    }

    def function(*arrays: Array) -> Array:
        return np.asarray(op.numpy(*arrays, **numbers))

    # Integers wrap around, so they are computed as what they are.
    arrays = [np.asarray(x.value, integer_of(x, dtype)) for x in operands]
    value = function(*arrays)
    seen = as_numbers(function)
    error = wandering(seen, arrays, [moves_of(x) for x in operands], whole)
    lost = wandering(seen, arrays, [stand_ins(x) for x in operands], whole) > 0
    lost |= any(np.any(x.error > 0) for x in operands if x.dtype in WHOLE)  # of whatever place
    if dtype in EXACT:
        worst = 1.0 if dtype == BOOL else np.inf
        return Bounded(value, np.where(lost | (error > 0), worst, 0.0), dtype)
    condition = wandering(seen, arrays, [steps_of(x) for x in operands], whole) / STEP
    largest = max(float(np.max(size(a), initial=1.0)) for a in arrays)
    scale = np.abs(value) + np.minimum(condition, MOST * largest)
    top = float(finfo(way(dtype)).max)
    if not whole:  # terms that cancel overflow on the way; in float64, in the meaning itself
        lost |= (scale > top) & ((np.abs(value) <= top) | (dtype == FLOAT64))
    if whole and largest > top**0.5:
        lost = lost | ~np.isnan(value)  # what overflows on the way depends on the order
    result = settle(
        value, error, dtype, ulps, np.where(np.isfinite(scale), scale, 0.0), kernel=True
    )
    return Bounded(result.value, np.where(lost, np.inf, result.error), dtype, result.signed)


def integer_of(x: Bounded, dtype: Any) -> Any:
    """The dtype that an operand has as an array; None: that of its value."""
    if x.dtype not in WHOLE:
        return None
    return dtype if dtype in WHOLE else None if x.weak else x.dtype


def is_rounded(op: Op, name: str, dtype: Any) -> bool:
    """Return whether an attribute meets the tensor as a number of its dtype."""
    return op.attrs[name].legal is is_number and dtype not in EXACT


def as_numbers(function: Function) -> Function:
    return lambda *arrays: np.asarray(function(*arrays)).astype(np.float64)


def size(a: Array) -> Array:
    """The magnitudes; 0 for what is no finite number."""
    wide = np.abs(a.astype(np.float64))
    return np.where(np.isfinite(wide), wide, 0.0)


def moves_of(x: Bounded) -> Moves:
    """The ends of what each element may be, and both zeros where it may be either."""
    error = np.broadcast_to(x.error, x.shape)
    if x.dtype in WHOLE:
        return []
    if x.dtype == BOOL:
        return [(~np.asarray(x.value, bool), error > 0)]
    inside = (error > 0) & ~np.isinf(error)
    near = (np.abs(x.value) <= error) & ((error > 0) | ~np.asarray(x.signed))
    zeros = np.zeros(x.shape)
    return [(x.low, inside), (x.high, inside), (zeros, near), (-zeros, near)]


def stand_ins(x: Bounded) -> Moves:
    """What may stand where nothing is known."""
    if x.dtype in EXACT or not np.any(x.lost):
        return []
    return [(np.full(x.shape, value), np.broadcast_to(x.lost, x.shape)) for value in STAND_INS]


def steps_of(x: Bounded) -> Moves:
    """A small step up and down, relative to the element."""
    if x.dtype in EXACT:
        return []
    inside = np.isfinite(x.value) & (x.value != 0)
    return [(x.value * (1 + STEP), inside), (x.value * (1 - STEP), inside)]


def wandering(function: Function, arrays: Sequence[Array], moves: Any, whole: bool) -> Array:
    """How far the result goes: the sum of what each element does, or all of them at once."""
    value = function(*arrays)
    total = np.zeros(value.shape)
    for place, others in enumerate(moves):
        for at in places(others, whole):
            worst = np.zeros(value.shape)
            for other, where in others:
                if np.any(where[at]):
                    moved = list(arrays)
                    moved[place] = replaced(arrays[place], other, where, at)
                    worst = np.maximum(worst, difference(function(*moved), value))
            total = total + worst
    random = np.random.default_rng(0)
    if any(np.any(where) for others in moves for _, where in others):
        for _ in range(PATTERNS):
            moved = [scattered(a, o, random) for a, o in zip(arrays, moves, strict=True)]
            total = np.maximum(total, difference(function(*moved), value))
    return total


def places(others: Moves, whole: bool) -> Iterator[Any]:
    """The elements to move by themselves; all together, where each has its own result."""
    if not whole:
        yield ...
    elif others:
        anywhere = np.any([where for _, where in others], axis=0)
        yield from map(tuple, np.argwhere(anywhere))


def replaced(array: Array, other: Array, where: Array, at: Any) -> Array:
    result = np.array(array, np.result_type(array, other))
    result[at] = np.where(where, other, array)[at]
    return result


def scattered(array: Array, others: Moves, random: np.random.Generator) -> Array:
    """Each element moved, or not, by chance."""
    for other, where in others:
        array = np.where(where & (random.random(np.shape(array)) < 0.5), other, array)
    return array
