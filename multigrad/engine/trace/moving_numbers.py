"""Numbers that move: read by a capture or in `xg.jit`, stepped, and in code that runs again in
backward.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from ...core.backend.compiler_events import is_tracing
from ...core.backend.contract import Backend
from ...core.support.threads import set_within
from ...core.trace.active_rules import THEN, WAITING, ActiveRules, Moving
from ...core.trace.lookups import (
    JIT_TRACE,
    READING,
    Telling,
    at_present,
    check_ranges,
    is_collecting,
    look_up,
    number_told,
)
from ...errors import TraceError


# --- read by a capture, or in a trace of `xg.jit` -------------------------------------------------
class NumberNow(Telling):
    moving: Moving

    @classmethod
    def of(cls, moving: Moving) -> NumberNow:
        fact = cls(f"moving number {moving.serial}")
        fact.moving = moving
        return fact

    def meaning(self) -> float:
        """Return the number; a trace in progress becomes valid for it only."""
        hold(self.moving)
        return number_told(self.moving)


def hold(number: Any) -> None:
    """Note, in a trace of `xg.jit`, what it holds as a constant: `number.value` is valid for it."""
    jit_trace = JIT_TRACE.get()
    if jit_trace is not None:
        jit_trace.held.append(number)


class JitTrace:
    """The moving numbers in a trace of `xg.jit`.

    Attributes:
        arguments: by number, what stands for it in the trace.
        met: other numbers that the traced code reads; they become arguments of the next trace.
        held: those that a graph within holds as constants, so that the trace is valid for them;
            what code reads by itself (`Reads`), too.
    """

    def __init__(self, arguments: Mapping[Moving, Any]) -> None:
        self.arguments = arguments
        self.met: list[Moving] = []
        self.held: list[Any] = []

    def read(self, moving: Moving) -> Any:
        """Return the trace's argument; without one, the number, right for this call only."""
        if moving in self.arguments:
            return self.arguments[moving]
        self.met.append(moving)
        return moving.value


def jit_tracing(
    moving: Iterable[Moving], values: Iterable[Any]
) -> AbstractContextManager[JitTrace]:
    """Let the trace within read these values for moving numbers."""
    return set_within(JIT_TRACE, JitTrace(dict(zip(moving, values, strict=True))))


def read_noted(moving: Moving) -> Any:
    """Return the stand-in for a moving number while code is captured or `xg.jit` traces it."""
    if is_collecting():  # first: a capture outlives the trace of `xg.jit` that it is made in
        return look_up(NumberNow.of(moving))
    return JIT_TRACE.get().read(moving)


def all_at_present(active: ActiveRules, backend: Backend | None = None) -> ActiveRules:
    """Return active rules with the current values of their moving numbers, cached while equal.

    Their token stays that of the `use`.
    """
    acts, pars = active.activations, active.params
    if not ((acts is not None and acts.moves) or (pars is not None and pars.moves)):
        return active
    first = None if acts is None else at_present(acts, backend)
    second = first
    if pars is not acts:
        second = None if pars is None else at_present(pars, backend)
    latest = active.present
    if latest is None or latest.activations is not first or latest.params is not second:
        latest = active.present = replace(active, activations=first, params=second, present=None)
    return latest


# --- objects that code makes ----------------------------------------------------------------------
def note_made(made: Any) -> None:
    """Note that an object was made: its contents are no reading of the code that makes it."""
    if (collected := READING.get()) is not None:
        collected.made[id(made)] = weakref.ref(made)


def was_made(item: Any) -> bool:
    """Return whether an object was made by the code that is read now."""
    collected = READING.get()
    reference = None if collected is None else collected.made.get(id(item))
    return reference is not None and reference() is item


# --- stepped --------------------------------------------------------------------------------------
def check_move(moving: Moving, number: float) -> None:
    """Check the next value of a moving number against the ranges of all rules that use it."""
    for in_force in moving.all_holding():
        # The others are not checked at their current values: they may be moved next.
        check_ranges(in_force, [number if v is moving else v for v in in_force.values])


def refuse_step(moving: Moving) -> None:
    # A step in a trace or a capture would happen once, not at each call.
    if is_tracing() or JIT_TRACE.get() is not None or is_collecting():
        raise TraceError(
            f"{moving.where()} is stepped while code is traced, where it would step once, for the "
            "trace, and not at each call. Call step() outside the compiled function, after it"
        )


# --- in code that runs again in backward ----------------------------------------------------------
class Noted:
    """The values, since changed, that a region read in its first run.

    Attributes:
        numbers: of moving numbers, by serial.
        names: the rule of each name, None for none, with the number of its registration.
    """

    __slots__ = ("__weakref__", "names", "numbers")

    def __init__(self, around: Noted | None = None) -> None:
        around = THEN.get() if around is None else around  # a first run inside a second one
        self.numbers: dict[int, float] = {} if around is None else dict(around.numbers)
        self.names: dict[str, tuple[Any, int | None]] = {} if around is None else dict(around.names)
        WAITING.add(self)

    def again(self) -> AbstractContextManager[Noted]:
        """Run within as in the first run: with the values of then."""
        return set_within(THEN, self)


def note_moved(moving: Moving, before: float) -> None:
    """Note the old value of a number that is about to move, in all waiting regions."""
    for region in tuple(WAITING):
        region.numbers.setdefault(moving.serial, before)
