"""Numbers that move: what a rule's param may be instead of a number, read anew at each application.

It stands below the rules in force, which say whether they have one; `present.py` reads it.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from typing import Any

_serials = itertools.count(1)


class Moving:
    """A number that moves from step to step; a schedule is one.

    Attributes:
        serial: tells it from all others, also from those that are gone.
        state: the count and its value: one tuple, so that other threads see both or neither.
    """

    state: tuple[int, float]

    def __init__(self) -> None:
        self.serial = next(_serials)
        # Weak references, which tell when they are gone: a step asks faster than of a set of them.
        self._holders: list[weakref.ref[Any]] = []
        self._followers: list[weakref.ref[Any]] = []

    def hold(self, in_force: Any) -> None:
        """Note a rule in force, or that of a layer, that has it for a param."""
        self._holders.append(weakref.ref(in_force, self._holders.remove))

    def all_holding(self) -> list[Any]:
        """Return the rules in force and those of layers that have it for a param."""
        return alive(self._holders)

    def follow(self, follower: Any) -> None:
        """Let `follower.on_move(moving)` be called after each move, and `before_step(moving)`
        before it is stepped: a checkpoint may have brought the follower elsewhere.
        """
        self._followers.append(weakref.ref(follower, self._followers.remove))

    def unfollow(self, follower: Any) -> None:
        """Call it no more."""
        self._followers[:] = [each for each in self._followers if each() is not follower]

    def all_following(self) -> list[Any]:
        """Return what follows it."""
        return alive(self._followers)

    @property
    def value(self) -> float:
        """What stands for it now."""
        raise NotImplementedError

    def take(self, taker: str) -> None:
        """Note whose param it is, for messages."""

    def where(self) -> str:
        """Return where it stands, for messages, such as "at step 3 of linear(...)"."""
        raise NotImplementedError


def alive(references: Iterable[weakref.ref[Any]]) -> list[Any]:
    """Return what weak references refer to, as far as it is there."""
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
        """Whether another number stands there now; NaN, which none does, equals nothing."""
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
    """Return the number that stands for one that moves, for what is no application; all else as it
    is.
    """
    return value.value if isinstance(value, Moving) else value
