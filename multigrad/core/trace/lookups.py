"""Facts that code reads besides its inputs: the rule in force, the rule of a name, moving numbers.

They are looked up anew at each call, so that a graph captured under one meaning never runs under
another. While code is captured, `reading` collects what it reads; later calls `look_up` the same
facts, and run the graph that was captured for their meanings:

    {"rule in force": "triangular#3(1.0)", "name scale": 7, "moving number 12": 0.5}

Compilers are told of each reading: a trace of theirs is valid for that meaning only.

The second part is the one place where a schedule becomes a number (`at_present`): in eager code a
float; in traced code a tensor that follows it, if the compiler has one. Eager code, `xg.jit` and
the frameworks' compilers ask here, at each application.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from ...errors import RuleValueError
from ..backend.compiler_events import tell_depend, tell_read
from ..backend.contract import Backend
from ..support.lazy_modules import provided
from ..support.params import as_number
from ..support.records import record
from ..support.threads import SERIALS, set_within
from .active_rules import CURRENT, THEN, Moving, NumberRead, RuleInForce, meant, standing

RULE_IN_FORCE = "rule in force"
READ = "read_"  # begins the names of inputs for numbers that code reads and that move
NAME = "name "  # the prefix of facts about the rule that a name means
NUMBERS: dict[str, int] = {}  # by name, of its latest registration or of the end of that

Meanings = dict[str, Any]  # by fact


@record(eq=True)
class Lookup:
    """A rule's name with the number of the registration that it meant; keeps no rule alive."""

    name: str
    number: int | None

    @property
    def superseded(self) -> bool:
        return NUMBERS.get(self.name) != self.number


class Telling(str):
    """A fact that knows how to look itself up; others are looked up by their text alone.

    Attributes:
        is_of_code: whether it is about values that the user's code reads.
    """

    is_of_code = False

    def meaning(self) -> Any:
        """Return the current meaning, or None if it cannot be determined."""
        raise NotImplementedError


# --- what a capture reads -------------------------------------------------------------------------
class Collected(NamedTuple):
    """What has been read since `reading` began.

    Attributes:
        meanings: the facts that were read.
        rule_at_start: the rule in force then: one that a `use` within sets is no reading.
        made: the objects made since, by id, in outer collections too: they may hold symbols.
    """

    meanings: Meanings
    rule_at_start: RuleInForce | None
    made: dict[int, weakref.ref[Any]]


READING: ContextVar[Collected | None] = ContextVar("multigrad_reading", default=None)


@contextmanager
def reading() -> Iterator[Meanings]:
    """Collect the facts that are read within; an outer collection does not get them."""
    outer = READING.get()
    made = {} if outer is None else outer.made
    collected = Collected({}, CURRENT.get().activations, made)
    with set_within(READING, collected):
        yield collected.meanings


def is_collecting() -> bool:
    return READING.get() is not None


def is_noted() -> bool:
    """Return whether a capture, or a trace of `xg.jit`, notes what is looked up now."""
    return READING.get() is not None or JIT_TRACE.get() is not None


def note(meanings: Mapping[str, Any]) -> None:
    collected = READING.get()
    if collected is None:
        return
    for fact, meaning in meanings.items():
        if fact != RULE_IN_FORCE or CURRENT.get().activations is collected.rule_at_start:
            collected.meanings.setdefault(fact, meaning)


# --- what a fact means now ------------------------------------------------------------------------
def note_lookup(lookup: Lookup) -> None:
    note({NAME + lookup.name: lookup.number})
    tell_depend(lookup)


def names_in(found: Meanings) -> tuple[Lookup, ...]:
    names = (fact for fact in found if fact.startswith(NAME))
    return tuple(Lookup(fact.removeprefix(NAME), found[fact]) for fact in names)


def look_up(fact: str) -> Any:
    """Return the current meaning of a fact, and note that it was read."""
    if isinstance(fact, Telling):
        meaning = fact.meaning()
        note({fact: meaning})
        return meaning
    if fact != RULE_IN_FORCE:
        name = fact.removeprefix(NAME)
        number = meant(name, (None, NUMBERS.get(name)))[1]
        note_lookup(Lookup(name, number))
        return number
    in_force = CURRENT.get().activations
    # A graph is the same for every key; it depends only on whether there is one.
    keyed = "@" if in_force is not None and in_force.counter is not None else ""
    meaning = "" if in_force is None else in_force.own_token + keyed + numbers_of(in_force)
    note({fact: meaning})
    tell_read()
    return meaning


def numbers_of(in_force: RuleInForce) -> str:
    """Return as text the current values of the moving numbers of a rule in force."""
    moving = (value for value in in_force.values if isinstance(value, Moving))
    return "".join([f"[{number_told(each)!r}]" for each in moving])


def number_told(moving: Moving) -> float:
    """Return the current value of a moving number, on which a trace in progress depends now."""
    number = standing(moving)
    tell_depend(NumberRead(moving, number))
    return number


def is_read(fact: str) -> bool:
    """Return whether a fact is looked up, rather than known about an input."""
    return is_in_force(fact) or isinstance(fact, Telling)


def is_in_force(fact: str) -> bool:
    """Return whether a fact is about the rules in force, of which compilers are told."""
    return fact == RULE_IN_FORCE or fact.startswith(NAME)


def look_up_all(facts: Iterable[str]) -> Meanings:
    """Return the current meanings of the facts that are looked up, in order."""
    return {fact: look_up(fact) for fact in facts if is_read(fact)}


# --- what a moving number is now ------------------------------------------------------------------
# Set while `xg.jit` traces, to a `JitTrace` of the engine; None outside.
JIT_TRACE: ContextVar[Any] = ContextVar("multigrad_jit_trace", default=None)


@provided
def read_noted(moving: Moving) -> Any:
    """Return a moving number for a capture or a trace of `xg.jit`: plain code reads none."""
    return number_told(moving)


def read(moving: Moving, backend: Backend | None = None) -> Any:
    """Return the current value of a moving number: a float, or what represents it in a trace.

    Args:
        backend: of the tensors that the number acts on; None: all are told.
    """
    if is_noted():
        return read_noted(moving)
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


def now(value: Any, backend: Backend | None = None) -> Any:
    """Return the current value of a number that may move; return other values unchanged."""
    return read(value, backend) if isinstance(value, Moving) else value


def at_present(in_force: RuleInForce, backend: Backend | None = None) -> RuleInForce:
    """Return a rule in force with the current values of its moving numbers, cached while equal."""
    if not in_force.moves:
        return in_force
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
        if not in_force.specialization.has_checked(values):  # a step has checked those already
            check_ranges(in_force, values)
    except RuleValueError as error:
        moving = (value for value in in_force.values if isinstance(value, Moving))
        raise RuleValueError(f"{error} ({', '.join(each.where() for each in moving)})") from None


def check_ranges(in_force: RuleInForce, values: Iterable[Any]) -> None:
    """Check values for a rule's numbers; None and tensors are not known and pass."""
    numbers = tuple([v if type(v) is float else as_number(v) for v in values])
    in_force.specialization.check_numbers(numbers)


def _is_same(a: Any, b: Any) -> bool:
    # 0.0 equals -0.0 but is not the same number, so zeros are never taken as unchanged.
    return a is b or (type(a) is type(b) is float and a == b != 0.0)
