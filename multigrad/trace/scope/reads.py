"""What captured and traced code reads besides its inputs: the rule in force, and which rule a name
means.

Both are facts that are looked up anew at each call, so that what was captured for one meaning never
runs under another. Compilers are told of each reading: what they are tracing may be kept for that
meaning only.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ...backend.finding.events import tell_depend, tell_read
from ...graph.support.data import dataclass
from .moving import Moving, NumberRead, meant, standing
from .rules import CURRENT, RuleInForce

RULE_IN_FORCE = "rule in force"
NAME = "name "  # how the fact begins that tells which rule a name means
NUMBERS: dict[str, int] = {}  # of the latest registration of each name, or of its end

Meanings = dict[str, Any]
# What is collected, the rule that was in force when that began (one of a `use` within is no
# reading), and by id the objects that were made since, which it keeps not alive: they may hold
# symbols.
Made = dict[int, weakref.ref[Any]]
READING: ContextVar[tuple[Meanings, RuleInForce | None, Made] | None] = ContextVar(
    "multigrad_reading", default=None
)


@dataclass(frozen=True, slots=True)
class Lookup:
    """A name of a rule, and the number of the registration that it meant; keeps no rule alive."""

    name: str
    number: int | None

    @property
    def superseded(self) -> bool:
        """Whether the name means another rule now."""
        return NUMBERS.get(self.name) != self.number


class Telling(str):
    """A fact that looks itself up."""

    def meaning(self) -> Any:
        """Return what it means now, None where that cannot be told."""
        raise NotImplementedError


@contextmanager
def reading() -> Iterator[Meanings]:
    """Collect what is read within, by fact; what is around this collects nothing of it."""
    found: Meanings = {}
    around = READING.get()
    reset = READING.set((found, CURRENT.get().activations, {} if around is None else around[2]))
    try:
        yield found
    finally:
        READING.reset(reset)


def is_collecting() -> bool:
    """Return whether readings are being collected: of a capture, or of a rule that is looked up."""
    return READING.get() is not None


def note(meanings: Mapping[str, Any]) -> None:
    """Add readings to those that are being collected."""
    collecting = READING.get()
    if collecting is None:
        return
    found, in_force, _ = collecting
    for fact, meaning in meanings.items():
        if fact != RULE_IN_FORCE or CURRENT.get().activations is in_force:
            found.setdefault(fact, meaning)


def note_made(made: Any) -> None:
    """Note that an object was made: what it holds is no reading of the code that makes it."""
    if (collecting := READING.get()) is not None:
        collecting[2][id(made)] = weakref.ref(made)


def was_made(held: Any) -> bool:
    """Return whether an object was made since the collection began."""
    collecting = READING.get()
    made = None if collecting is None else collecting[2].get(id(held))
    return made is not None and made() is held


def note_name(name: str, number: int | None) -> None:
    """Note that a name was looked up, with its number from before that."""
    note_lookup(Lookup(name, number))


def note_lookup(lookup: Lookup) -> None:
    """Note that a name was looked up."""
    if READING.get() is not None:
        note({NAME + lookup.name: lookup.number})
    tell_depend(lookup)


def names_in(found: Meanings) -> tuple[Lookup, ...]:
    """Return the names among what was read."""
    names = (fact for fact in found if fact.startswith(NAME))
    return tuple(Lookup(fact.removeprefix(NAME), found[fact]) for fact in names)


def look_up(fact: str) -> Any:
    """Return what a fact means now, which is noted."""
    if isinstance(fact, Telling):
        meaning = fact.meaning()
        note({fact: meaning})
        return meaning
    if fact != RULE_IN_FORCE:
        name = fact.removeprefix(NAME)
        number = meant(name, (None, NUMBERS.get(name)))[1]
        note_name(name, number)
        return number
    in_force = CURRENT.get().activations
    # Which numbers a key gives is no matter of a graph.
    keyed = "@" if in_force is not None and in_force.counter is not None else ""
    meaning = "" if in_force is None else in_force.bound_rule.token + keyed + numbers_of(in_force)
    note({fact: meaning})
    tell_read()
    return meaning


def numbers_of(in_force: RuleInForce) -> str:
    """Return as text what stands now for the numbers that move in a rule in force."""
    moving = [value for value in in_force.values if isinstance(value, Moving)]
    numbers = [standing(each) for each in moving]
    for each, number in zip(moving, numbers, strict=True):
        tell_depend(NumberRead(each, number))
    return "".join(f"[{number!r}]" for number in numbers)


def is_read(fact: str) -> bool:
    """Return whether a fact is one that is looked up, not one about an input."""
    return is_in_force(fact) or isinstance(fact, Telling)


def is_in_force(fact: str) -> bool:
    """Return whether a fact is about what is in force, of which compilers are told."""
    return fact == RULE_IN_FORCE or fact.startswith(NAME)


def look_up_all(facts: Iterable[str]) -> Meanings:
    """Return what those of some facts mean now that are looked up, in their order."""
    return {fact: look_up(fact) for fact in facts if is_read(fact)}
