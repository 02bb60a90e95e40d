"""Numbers that move: read by a capture or in `xg.jit`, what each is now, stepped, and in code that
runs again in backward.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from ...core.backend.compiler_events import ON_MOVE, is_tracing, tell_depend
from ...core.backend.contract import Backend
from ...core.backend.values import concrete_number
from ...core.support.threads import SERIALS, set_within
from ...core.trace.active_rules import (
    THEN,
    WAITING,
    ActiveRules,
    Moving,
    NumberRead,
    RuleInForce,
    settle,
)
from ...core.trace.lookups import (
    READING,
    Telling,
    at_present,
    check_ranges,
    is_collecting,
    look_up,
)
from ...errors import RuleValueError, TraceError


class MovingNumber(Moving):
    """A number that moves, with who holds it and who follows it."""

    def __init__(self) -> None:
        self.serial = next(SERIALS)
        # Lists of weak references that remove themselves: a step reads them faster than a WeakSet.
        self._holders: list[weakref.ref[Any]] = []
        self._followers: list[weakref.ref[Any]] = []

    def hold(self, in_force: Any) -> None:
        """Note a rule in force, or that of a layer, that has this number for a param."""
        self._holders.append(weakref.ref(in_force, self._holders.remove))

    def all_holding(self) -> list[Any]:
        return alive(self._holders)

    def follow(self, follower: Any) -> None:
        """Call `follower.on_move(moving)` after each move and `before_step(moving)` before a step.

        The latter is needed because a checkpoint may have restored the follower's value.
        """
        self._followers.append(weakref.ref(follower, self._followers.remove))

    def unfollow(self, follower: Any) -> None:
        self._followers[:] = [each for each in self._followers if each() is not follower]

    def all_following(self) -> list[Any]:
        return alive(self._followers)


def alive(references: Iterable[weakref.ref[Any]]) -> list[Any]:
    return [each for each in [reference() for reference in references] if each is not None]


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


# Set while `xg.jit` traces, to a `JitTrace`; None outside.
JIT_TRACE: ContextVar[Any] = ContextVar("multigrad_jit_trace", default=None)


def is_noted() -> bool:
    """Return whether a capture, or a trace of `xg.jit`, notes what is looked up now."""
    return READING.get() is not None or JIT_TRACE.get() is not None


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


# --- what one is now: the one place where it becomes a number ------------------------------------
# In eager code a float; in traced code a tensor that follows it, if the compiler has one. Eager
# code, `xg.jit` and the frameworks' compilers ask here, at each application.
def read(moving: Moving, backend: Backend | None = None) -> Any:
    """Return the current value of a moving number: a float, or what represents it in a trace.

    Args:
        backend: of the tensors that the number acts on; None: all are told.
    """
    if is_collecting():  # first: a capture outlives the trace of `xg.jit` that it is made in
        return look_up(NumberNow.of(moving))
    if (jit_trace := JIT_TRACE.get()) is not None:
        return jit_trace.read(moving)
    if backend is None:
        return number_told(moving)
    compiler = backend.compiler
    tensor = None if compiler.follow is None else compiler.follow(moving)
    if tensor is not None:
        return tensor
    number = standing(moving)
    # A region that runs again in backward must read the number of its first run.
    if compiler.on_draw is not None and compiler.on_call is None:
        number = compiler.on_draw(lambda: number)
    if compiler.on_depend is not None:
        compiler.on_depend(NumberRead(moving, number))
    return number


def as_it_stands(in_force: RuleInForce, backend: Backend | None = None) -> RuleInForce:
    values = tuple(
        [read(each, backend) if isinstance(each, Moving) else each for each in in_force.values]
    )
    latest = in_force.present
    if latest is not None and all(map(_is_same, latest.values, values)):
        return latest
    check_present(in_force, values)
    numbers = [v for v, source in zip(values, in_force.values, strict=True) if v is not source]
    # Traced numbers get a token that never recurs: no later trace may reuse what this one makes.
    are_floats = all(type(value) is float for value in numbers)
    word = ",".join(map(repr, numbers)) if are_floats else f"<traced {next(SERIALS)}>"
    present = in_force.with_values(values, f"{in_force.own_token}[{word}]")
    if are_floats:
        in_force.present = present
    return present


def is_handed_along(backend: Backend) -> bool:
    """Return whether eager code passes the current values of moving numbers as arguments.

    It does if the compiler neither follows them nor has to be told of them.
    """
    compiler = backend.compiler
    is_told = compiler.on_depend is not None or compiler.follow is not None
    return not is_told and (compiler.on_draw is None or compiler.on_call is not None)


def hand_along(
    in_force: RuleInForce, call: Callable[..., Any], call_anew: Callable[[Any, RuleInForce], Any]
) -> Callable[[Any], Any]:
    """Return `f(x)`, which calls `call(x, *values)` with the current values of moving numbers.

    Args:
        call_anew: `(x, in_force)`, runs if the values come from elsewhere: an argument of `xg.jit`,
            a fact of a capture, the first run of a region.
    """
    values, specialization = in_force.values, in_force.specialization
    moving = [(i, each) for i, each in enumerate(values) if isinstance(each, Moving)]
    last_numbers: list[Any] = []  # replaced as a whole, so that other threads never see half a list

    def run(x: Any) -> Any:
        nonlocal last_numbers
        if READING.get() is not None or JIT_TRACE.get() is not None or THEN.get() is not None:
            return call_anew(x, in_force)
        numbers = list(values)
        for i, each in moving:
            numbers[i] = each.state[1]
        if numbers != last_numbers:
            if tuple(numbers) != specialization.checked_values:  # a step has checked those already
                check_present(in_force, numbers)
            last_numbers = numbers
        return call(x, *numbers)

    return run


def check_present(in_force: RuleInForce, values: Sequence[Any]) -> None:
    try:
        # A step may have checked those already.
        if not _are_same(in_force.specialization.checked_values, values):
            check_ranges(in_force, values)
    except RuleValueError as error:
        moving = (value for value in in_force.values if isinstance(value, Moving))
        raise RuleValueError(f"{error} ({', '.join(each.where() for each in moving)})") from None


def _are_same(checked: Sequence[Any], values: Sequence[Any]) -> bool:
    pairs = zip(checked, values, strict=False)
    matches = [a is b or (type(a) is type(b) is float and a == b) for a, b in pairs]
    return len(checked) == len(values) and all(matches)


def _is_same(a: Any, b: Any) -> bool:
    # 0.0 equals -0.0 but is not the same number, so zeros are never taken as unchanged.
    return a is b or (type(a) is type(b) is float and a == b != 0.0)


def read_number(value: Any) -> Any:
    """Return the number in a 0-d tensor, None if it is known at run time only.

    Of a moving number, return the one that stands for it outside applications; else the value.
    """
    if not hasattr(value, "dtype"):
        return settle(value)
    return concrete_number(value)


def numbers_of(in_force: RuleInForce) -> str:
    """Return as text the current values of the moving numbers of a rule in force."""
    moving = (value for value in in_force.values if isinstance(value, Moving))
    return "".join([f"[{number_told(each)!r}]" for each in moving])


def number_told(moving: Moving) -> float:
    """Return the current value of a moving number, on which a trace in progress depends now."""
    number = standing(moving)
    tell_depend(NumberRead(moving, number))
    return number


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
def check_move(moving: MovingNumber, number: float) -> None:
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


def tell_moved(moving: MovingNumber) -> None:
    """Tell all loaded compilers, and a number's followers, that it has moved."""
    for on_move in ON_MOVE:
        on_move(moving)
    for follower in moving.all_following():
        follower.on_move(moving)


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


def standing(moving: Moving) -> float:
    """Return the current value of a moving number; in a second run, that of the first run."""
    then = THEN.get()
    number = None if then is None else then.numbers.get(moving.serial)
    return moving.value if number is None else number
