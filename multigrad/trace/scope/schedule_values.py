"""Numbers that move: what a rule's param may be instead of a number, read anew at each application;
and what stood where code ran first that runs again in backward, as a checkpoint's region does.

It stands below the rules in force, which say whether they have one; `lookups.py` reads it. A second
run is to compute what the first one did, whatever has changed since. So a change tells the regions
that are waiting for theirs what stood before it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ...graph.support.threads import SERIALS


class Moving:
    """A number that moves from step to step; a schedule is one.

    Attributes:
        serial: tells it from all others, also from those that are gone.
        state: the count and its value: one tuple, so that other threads see both or neither.
    """

    state: tuple[int, float]

    def __init__(self) -> None:
        self.serial = next(SERIALS)
        # Weak references, which tell when they are gone: a step asks faster than of a set of them.
        self._holders: list[weakref.ref[Any]] = []
        self._followers: list[weakref.ref[Any]] = []

    def hold(self, in_force: Any) -> None:
        """Note a rule in force, or that of a layer, that has it for a param."""
        self._holders.append(weakref.ref(in_force, self._holders.remove))

    def all_holding(self) -> list[Any]:
        return alive(self._holders)

    def follow(self, follower: Any) -> None:
        """Let `follower.on_move(moving)` be called after each move, and `before_step(moving)`
        before it is stepped: a checkpoint may have brought the follower elsewhere.
        """
        self._followers.append(weakref.ref(follower, self._followers.remove))

    def unfollow(self, follower: Any) -> None:
        self._followers[:] = [each for each in self._followers if each() is not follower]

    def all_following(self) -> list[Any]:
        return alive(self._followers)

    @property
    def value(self) -> float:
        raise NotImplementedError

    def take(self, taker: str) -> None:
        """Note whose param it is, for messages."""

    def where(self) -> str:
        """Return where it stands, for messages, such as "at step 3 of linear(...)"."""
        raise NotImplementedError


def alive(references: Iterable[weakref.ref[Any]]) -> list[Any]:
    return [each for each in [one() for one in references] if each is not None]


class NumberRead:
    """The number that was read of one that moves, where code was traced for it; keeps it alive.

    Two are equal where they say the same.
    """

    __slots__ = ("moving", "number")

    def __init__(self, moving: Moving, number: float) -> None:
        self.moving = moving
        self.number = number

    @property
    def superseded(self) -> bool:
        return self.moving.value != self.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumberRead) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[int, float]:
        return self.moving.serial, self.number

    def __repr__(self) -> str:
        return f"{self.number!r}, {self.moving.where()}"


def settle(value: Any) -> Any:
    """Return the number that stands for one that moves, outside of applications; else as it is."""
    return value.value if isinstance(value, Moving) else value


# --- what stood where code ran first that runs again in backward ---------------------------------


class Noted:
    """What stood when a region ran first, of what has changed since.

    Attributes:
        numbers: of those that move, by their serials.
        names: the rules that names meant, None for none, and the numbers of their registrations.
    """

    __slots__ = ("__weakref__", "names", "numbers")

    def __init__(self, around: Noted | None = None) -> None:
        around = THEN.get() if around is None else around  # it runs first where that runs again
        self.numbers: dict[int, float] = {} if around is None else dict(around.numbers)
        self.names: dict[str, tuple[Any, int | None]] = {} if around is None else dict(around.names)
        WAITING.add(self)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Let stand within what stood then."""
        reset = THEN.set(self)
        try:
            yield
        finally:
            THEN.reset(reset)


WAITING: weakref.WeakSet[Noted] = weakref.WeakSet()
THEN: ContextVar[Noted | None] = ContextVar("multigrad_then", default=None)


def note_moved(moving: Moving, before: float) -> None:
    """Tell regions what stood for a number that is about to move."""
    for region in tuple(WAITING):
        region.numbers.setdefault(moving.serial, before)


def note_renamed(name: str, rule: Any, number: int | None) -> None:
    """Tell regions what a name meant that is about to mean another rule."""
    for region in tuple(WAITING):
        region.names.setdefault(name, (rule, number))


def standing(moving: Moving) -> float:
    """Return the current value of a moving number; in a region that runs again, its first value."""
    then = THEN.get()
    number = None if then is None else then.numbers.get(moving.serial)
    return moving.value if number is None else number


def meant(name: str, known: tuple[Any, int | None]) -> tuple[Any, int | None]:
    """Return the rule that a name means, and the number of its registration: `known`, or what it
    meant in the first run of a region that runs again.
    """
    then = THEN.get()
    return known if then is None else then.names.get(name, known)


def is_of_then() -> bool:
    """Return whether names mean here what they meant before, whatever they mean now."""
    then = THEN.get()
    return then is not None and bool(then.names)
