"""What stood where code ran first that runs again in backward, as a checkpoint's region does.

Its second run is to compute what the first one did, whatever has changed since. So a change tells
the regions that are waiting for their second run what stood before it: a region notes no more than
what has changed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .moving import Moving


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
    """Return what stands for a number that moves; in a region that runs again, what stood then."""
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
    """Return whether names mean here what they meant before, so that nothing known of them now
    counts.
    """
    then = THEN.get()
    return then is not None and bool(then.names)
