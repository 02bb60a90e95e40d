"""Inputs beside those that are given, drawn from them, on which a kernel is compared: far out and
near, rows that are alike or cancel, other ids and masks, other plain numbers.

What is drawn may be outside a function's domain: only where the reference is finite does it say
something. So a move keeps what the given numbers show: signs, bounds, an order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ..engine.functions.calls.arguments import replace_at
from .trial import Array, Arrays, Trial

Generator = np.random.Generator
IGNORED = -100  # the label that losses of torch leave out unless they are told another one
FAR = 1e4  # of one element among others


class Move(NamedTuple):
    """Other inputs: `arrays` in place of the given ones, and plain numbers by their places."""

    name: str
    arrays: Arrays
    numbers: Mapping[int, Any] = MappingProxyType({})


# --- floats ---------------------------------------------------------------------------------------
def _alike(a: Array) -> Array:
    return a[..., :1] + np.zeros_like(a)


def _cancelling(a: Array) -> Array:
    """Return rows that add up to nothing but rounding: the second half is the first, negated."""
    half = a.shape[-1] // 2
    rest = np.zeros_like(a[..., 2 * half :])
    return np.concatenate([a[..., :half], -a[..., :half], rest], -1)


def _with_zero_row(a: Array) -> Array:
    return np.concatenate([np.zeros_like(a[:1]), a[1:]])


def _with_far_element(a: Array) -> Array:
    flat = a.ravel().copy()
    flat[: flat.size // 2 + 1 : max(flat.size // 2, 1)] *= FAR
    return flat.reshape(a.shape)


SCALED: dict[str, Callable[[Array], Array]] = {
    "times 30": lambda a: a * 30,
    "times 1e4": lambda a: a * FAR,
    "times 1e12": lambda a: a * 1e12,
    "times 1e-4": lambda a: a * 1e-4,
    "times 1e-30": lambda a: a * 1e-30,
    "times 1e-40": lambda a: a * 1e-40,
}
OF_ROWS: dict[str, Callable[[Array], Array]] = {
    "with each row alike": _alike,
    "with a row of zeros": _with_zero_row,
    "with far elements": _with_far_element,
}
SIGNED: dict[str, Callable[[Array], Array]] = {
    "plus 1000": lambda a: a + 1e3,
    "minus 1000": lambda a: a - 1e3,
    "with rows that cancel": _cancelling,
    "all 0": np.zeros_like,
}
ALONE = ("times 1e4", "times 1e-4", "plus 1000", "with far elements", "with a row of zeros")


def _moves_of_floats(a: Array) -> dict[str, Callable[[Array], Array]]:
    if not a.ndim or not a.size or not np.isfinite(a).all():
        return {}  # a scalar is a step, a temperature, a bound; infinities are a mask
    if np.isin(a, (0.0, 1.0)).all():
        return {name: change for name, change in OF_ROWS.items() if "far" not in name}
    if (a < 0).any():
        return SCALED | OF_ROWS | SIGNED
    return {} if (a <= 1).all() else SCALED


def _in_floats(trial: Trial) -> Iterator[Move]:
    places = [n for n in trial.floats if n < trial.input_count]
    arrays = trial.cast("float64")
    moves = {n: _moves_of_floats(arrays[n]) for n in places}
    for name in SCALED | OF_ROWS | SIGNED:
        movable = [n for n in places if name in moves[n]]
        sets = [movable, *([n] for n in movable if len(movable) > 1 and name in ALONE)]
        for each in filter(None, sets):
            who = "the inputs" if len(each) == len(places) else trial.names[each[0]]
            changed = [moves[n][name](arrays[n]) for n in each]
            yield Move(f"{who} {name}", replace_at(arrays, each, changed))


# --- ids, masks and plain numbers -----------------------------------------------------------------
def _others_of_ids(a: Array, lengths: list[int], rng: Generator) -> Iterator[tuple[str, Array]]:
    low, high = int(a.min()), int(a.max())
    steps = np.diff(a.ravel())
    if a.size > 2 and (steps > 0).all() and (low == 0 or a.size > 4):
        return  # positions, or where parts begin
    if len({*a.ravel().tolist()}) == a.size > 2 and (low, high) == (0, a.size - 1):
        return  # an order of all places, of which another input may be the inverse
    drawn = rng.integers(low, high + 1, a.shape)
    is_sorted = a.size > 2 and (steps >= 0).all()
    yield "drawn", np.sort(drawn, axis=None).reshape(a.shape) if is_sorted else drawn
    yield "all alike", np.full_like(a, a.flat[0])
    if is_sorted:
        return
    for last in sorted({length - 1 for length in lengths if length - 1 > high}):
        yield f"with {last}", _with_first(a, last)
    if low >= 0:
        yield "with 0", _with_first(a, 0)
        every_other = np.where(np.arange(a.size).reshape(a.shape) % 2, a, IGNORED)
        yield f"every other {IGNORED}", every_other
        yield f"all {IGNORED}", np.full_like(a, IGNORED)


def _with_first(a: Array, value: int) -> Array:
    a = a.copy()
    a.flat[0] = value
    return a


def _others_of_masks(a: Array, rng: Generator) -> Iterator[tuple[str, Array]]:
    yield "drawn", rng.random(a.shape) < 0.5
    yield "all False", np.zeros_like(a)
    yield "all True", np.ones_like(a)
    if a.ndim:
        yield "with an empty row", _with_zero_row(a)


def others_of_number(value: Any) -> list[Any]:
    """Return other plain numbers than one; none for what is no number."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1]
    return [value * 0.5, value * 1.75 + 0.25] if isinstance(value, float) else []


def _in_others(trial: Trial, rng: Generator) -> Iterator[Move]:
    arrays = trial.cast("float64")
    lengths = sorted({length for n in trial.floats for length in arrays[n].shape})
    for n, a in enumerate(arrays):
        if n in trial.floats or not a.size or a.dtype.kind not in "iub":
            continue
        of_masks = a.dtype.kind == "b"
        others = _others_of_masks(a, rng) if of_masks else _others_of_ids(a, lengths, rng)
        for name, other in others:
            yield Move(f"{trial.names[n]} {name}", replace_at(arrays, [n], [other.astype(a.dtype)]))
    for place, value in enumerate(trial.arguments.leaves):
        for other in others_of_number(value):
            yield Move(f"{other!r} in place of {value!r}", arrays, {place: other})


def moves(trial: Trial, seed: int) -> list[Move]:
    """Return other inputs for a trial, the same for one seed."""
    return [*_in_floats(trial), *_in_others(trial, np.random.default_rng((seed, 7)))]
