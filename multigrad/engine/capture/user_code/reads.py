"""What code reads besides its arguments, as facts: globals, closure cells, and what these lead to.

A graph holds such values as constants, so they are facts (`trace/lookups.py`): a graph runs while
they are what they were, and other values are another capture. Which values there are,
`reachable.py` finds out.

    class Atan: slope = 2.0               Reads of `curve`:
    def scaled(x): return x * FACTOR        global Atan            the class itself
    def curve(x):                           global Atan, .slope    2.0
        return scaled(x) * Atan.slope       global scaled          the function itself
                                            global scaled, its code
                                            global scaled, global FACTOR

Numbers, strings and arrays are compared by value, all else by identity. Each value is looked up
anew from the start of its path, so nothing is kept alive.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from operator import is_
from typing import Any, NamedTuple

from ....core.ir.op import FLOAT_SCALAR
from ....core.support.threads import SERIALS
from ....core.trace.lookups import READ, Telling
from ....errors import TraceError
from ...trace.moving_numbers import hold
from .paths import (
    MISSING,
    STARTS,
    TAKES,
    Find,
    Path,
    cell_of,
    global_of,
    is_same,
    key_of,
    opened,
    token_of,
)
from .read_checks import Run, write_find, write_guard

Latest = tuple[tuple[Find, ...], Sequence[Any], int]  # what finds, what was found, its number
MOST_READS = 1024  # of one function
MOST_KEYS = 256  # of the values of one function: then they are numbered anew
LENGTH = ("length_of", None)  # the last step of a path to a container's length
CHANGES = 2  # of a float: then it is tried as a run-time number
MOST_CHANGES = 16  # of an array: then its code runs as written, not as a graph for each value
NONE: frozenset[Any] = frozenset()
# While a form is captured that serves all values of these numbers; they are its last inputs.
LOOSE: ContextVar[Mapping[Reads, frozenset[Path]]] = ContextVar(
    "multigrad_loose", default=types.MappingProxyType({})
)


class Reads(Telling):
    """The fact about all that a function reads, or an object that is called: each value by its path
    from there. Their meaning is a number, which is another for other values.
    """

    is_of_code = True
    serial: int
    anchor: Callable[[], Any]  # a weak reference, where Python offers one
    moving: frozenset[Path]  # to floats that have changed often enough to be run-time numbers
    _changes: dict[Path, int]
    # The functions that find the values; what they found last, by open paths; and the numbers of
    # what was found. Replaced as a whole, as other threads read it.
    _state: tuple[dict[Path, Find], dict[frozenset[Path], Latest], dict[Any, int]]

    @classmethod
    def of(cls, anchor: Any) -> Reads:
        """Return the fact about an anchor: always the same while that lives."""
        reads = _known.get(id(anchor))
        if reads is None or reads.anchor() is not anchor:
            name = getattr(anchor, "__qualname__", type(anchor).__name__)
            serial = next(SERIALS)
            reads = cls(f"what {name} reads #{serial}")
            reads.serial = serial
            reads.moving, reads._changes, reads._state = NONE, {}, ({}, {}, {})
            try:
                reads.anchor = weakref.ref(anchor, partial(_forget, id(anchor)))
            except TypeError:
                reads.anchor = lambda: anchor
            _known[id(anchor)] = reads
        return reads

    @property
    def finds(self) -> dict[Path, Find]:
        return self._state[0]

    def add(self, path: Path, find: Find) -> None:
        if path not in self.finds:
            if len(self.finds) >= MOST_READS:
                raise TraceError(f"{self}: more than {MOST_READS} values, too many to compare")
            self.reset({**self.finds, path: find})

    def reset(self, finds: dict[Path, Find]) -> None:
        self._state = finds, {}, {}

    def at(self, path: Path) -> Any:
        """Return the value at the end of a path now, as far as the path is given."""
        value = self.anchor()
        for kind, place in path:
            value = TAKES[kind](value, place)
        return value

    def lengths(self) -> dict[Path, int]:
        found = {path: find() for path, find in self.finds.items() if path[-1] == LENGTH}
        return {path: length for path, length in found.items() if length is not MISSING}

    def leave_out(self, lengths: Mapping[Path, int]) -> bool:
        """Leave out containers that have grown since: code that fills one does not read it."""
        grown = [path[:-1] for path, n in self.lengths().items() if n > lengths.get(path, n)]
        for path in grown:
            rows = self.finds.items()
            self.reset({each: find for each, find in rows if each[: len(path)] != path})
        return bool(grown)

    def meaning(self) -> int:
        hold(self)
        return self.meaning_but(LOOSE.get().get(self, NONE))

    @property
    def value(self) -> int:
        return self.meaning_but(NONE)

    def meaning_but(self, open_paths: frozenset[Path]) -> int:
        """Return the meaning, in which a float at one of these paths may be any float."""
        rows, latest, numbers = self._state
        if open_paths not in latest:
            opening = [partial(opened, f) if path in open_paths else f for path, f in rows.items()]
            latest[open_paths] = tuple(opening), [], 0
        finds, tokens, number = latest[open_paths]
        found = [token_of(find()) for find in finds]
        # The same numbers, or the same weak references: nothing has changed.
        if len(found) == len(tokens) and (
            all(map(is_, found, tokens)) or all(map(is_same, found, tokens))
        ):
            return number
        self._note_moves([*rows], tokens, found)
        if len(numbers) >= MOST_KEYS:
            numbers.clear()
        number = numbers.setdefault(tuple(map(key_of, found)), next(SERIALS))
        latest[open_paths] = finds, found, number
        return number

    def found(self, number: int, open_paths: frozenset[Path]) -> dict[Path, Any] | None:
        """Return by path what was found last; None if its number is another."""
        rows, latest, _ = self._state
        _, found, number_now = latest.get(open_paths, ((), (), None))
        return dict(zip(rows, found, strict=True)) if number_now == number else None

    def _note_moves(
        self, paths: Sequence[Path], tokens: Sequence[Any], found: Sequence[Any]
    ) -> None:
        for path, old, new in zip(paths, tokens, found, strict=False):
            if type(old) is type(new) and type(new) in (float, tuple) and old != new:
                self._changes[path] = self._changes.get(path, 0) + 1
                if self._changes[path] == CHANGES and type(new) is float:
                    self.moving |= {path}

    def refuse_moving_arrays(self) -> None:
        for path, find in self.finds.items():
            if self._changes.get(path, 0) > MOST_CHANGES and type(token_of(find())) is tuple:
                raise TraceError(
                    f"{self}: an array ({path[-1][1]!r}) that has changed more than "
                    f"{MOST_CHANGES} times; pass it as an argument"
                )


def run_while(
    numbers: Mapping[Reads, int],
    open_paths: Mapping[Reads, frozenset[Path]],
    run: Run,
    otherwise: Run,
) -> Run:
    """Return `run` for as long as facts have these meanings, as they had last; else `otherwise`."""
    found: list[tuple[Find, dict[Path, Any]]] = []
    for reads, number in numbers.items():
        tokens = reads.found(number, open_paths.get(reads, NONE))
        if tokens is None:
            return otherwise
        found.append((reads.anchor, tokens))
    with suppress(Exception):  # what led to a value has changed by now
        return write_guard(found, run, otherwise)
    return otherwise


# By id. A row goes with its anchor, and keeps it alive only where Python has no weak reference.
_known: dict[int, Reads] = {}


def _forget(key: int, anchor: Any) -> None:
    # No table is left as Python ends.
    if _known and key in _known and _known[key].anchor is anchor:
        del _known[key]


# --- numbers that keep changing, as inputs of a capture for all values ----------------------------
def numbers_moving() -> list[tuple[str, Find]]:
    """Return the names of the inputs for numbers, and functions that find them."""
    rows = [
        (reads, path) for reads, paths in LOOSE.get().items() for path in sorted(paths, key=repr)
    ]
    return [(f"{READ}{i}", write_find(reads.anchor, path)) for i, (reads, path) in enumerate(rows)]


class Moved(NamedTuple):
    """What stands for moving numbers in a capture.

    Attributes:
        symbols: by the id of what holds a number, and its place there.
        leading: the ids of all values on the way to one.
        inputs: the symbols, in order.
    """

    symbols: dict[tuple[int, Any], Any]
    leading: set[int]
    inputs: list[Any]


def moved(trace: Any) -> Moved:
    """Return symbols for the numbers that move, as a capture begins."""
    result = Moved({}, set(), [])
    names = iter(name for name, _ in numbers_moving())
    for reads, paths in LOOSE.get().items():
        for path in sorted(paths, key=repr):
            starts = [n for n, (kind, _) in enumerate(path) if kind in STARTS]
            # A function is copied, whatever led to it; what it refers to is replaced in the copy.
            way = [reads.at(path[:n]) for n in range(starts[-1] + 1 if starts else 0, len(path))]
            owner, (kind, place) = reads.at(path[:-1]), path[-1]
            if kind == global_of.__name__:
                owner = owner.__globals__
            elif kind == cell_of.__name__:
                owner, place = owner.__closure__[place], None
            result.leading.update(map(id, way))
            symbol = trace.input(next(names), FLOAT_SCALAR)
            result.symbols.setdefault((id(owner), place), symbol)
            result.inputs.append(symbol)
    return result
