"""Facts that code reads besides its inputs: the rule in force, the rule of a name, moving numbers.

They are looked up anew at each call, so that a graph captured under one meaning never runs under
another. While code is captured, `reading` collects what it reads; later calls `look_up` the same
facts, and run the graph that was captured for their meanings:

    {"rule in force": "triangular#3(1.0)", "name scale": 7, "moving number 12": 0.5}

Compilers are told of each reading: a trace of theirs is valid for that meaning only.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from ..backend.compiler_events import tell_depend, tell_read
from ..backend.contract import Backend
from ..support.lazy_modules import of_engine
from ..support.params import as_number
from ..support.records import record
from ..support.threads import set_within
from .active_rules import CURRENT, Moving, RuleInForce, meant

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
    numbers = numbers_of(in_force) if in_force is not None and in_force.moves else ""
    meaning = "" if in_force is None else in_force.own_token + keyed + numbers
    note({fact: meaning})
    tell_read()
    return meaning


def is_read(fact: str) -> bool:
    """Return whether a fact is looked up, rather than known about an input."""
    return is_in_force(fact) or isinstance(fact, Telling)


def is_in_force(fact: str) -> bool:
    """Return whether a fact is about the rules in force, of which compilers are told."""
    return fact == RULE_IN_FORCE or fact.startswith(NAME)


def look_up_all(facts: Iterable[str]) -> Meanings:
    """Return the current meanings of the facts that are looked up, in order."""
    return {fact: look_up(fact) for fact in facts if is_read(fact)}


# --- what a moving number is now: `engine/trace/moving_numbers.py`, which also moves them ---------
MOVES = "a number that moves"
read = of_engine(__name__, "read", MOVES)
numbers_of = of_engine(__name__, "numbers_of", MOVES)
as_it_stands = of_engine(__name__, "as_it_stands", MOVES)
is_handed_along = of_engine(__name__, "is_handed_along", MOVES)
hand_along = of_engine(__name__, "hand_along", MOVES)


def now(value: Any, backend: Backend | None = None) -> Any:
    """Return the current value of a number that may move; return other values unchanged."""
    return read(value, backend) if isinstance(value, Moving) else value


def at_present(in_force: RuleInForce, backend: Backend | None = None) -> RuleInForce:
    """Return a rule in force with the current values of its moving numbers, cached while equal."""
    return as_it_stands(in_force, backend) if in_force.moves else in_force


def check_ranges(in_force: RuleInForce, values: Iterable[Any]) -> None:
    """Check values for a rule's numbers; None and tensors are not known and pass."""
    numbers = tuple([v if type(v) is float else as_number(v) for v in values])
    in_force.specialization.check_numbers(numbers)
