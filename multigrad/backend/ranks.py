"""The processes that train one model together: how a framework tells a process which one it is,
and where it leaves text for the others.

That place is the framework's store of keys, beside the collectives of the training: a process that
waits there for one that does not come waits for a bounded time, and mixes nothing up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The ranks of a program, as this process sees them; the same object as long as they last."""

    rank: int
    """Which one this is, from 0."""

    size: int
    """How many there are, at least two."""

    put: Callable[[str, str], None]
    """(key, text): leaves text for all, under a key that was not used before."""

    look: Callable[[str], str | None]
    """(key) -> the text under it, or None where there is none yet; it does not wait long."""

    drop: Callable[[str], None]
    """(key): nobody looks for it any more."""

    timeout: Callable[[], float]
    """How many seconds the framework itself waits for a rank that does not come."""

    waits: bool = True
    """Whether a rank may wait here for the others; not where they run one after another."""

    lane: str = ""
    """Which of the threads of this process that each rank has; "" for the main one."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """What a framework knows of them."""

    group: Callable[[], Group | None] | None = None
    """The ranks of which the code that runs now on this thread is one; None: it is alone, or on a
    thread that the other ranks need not have."""
