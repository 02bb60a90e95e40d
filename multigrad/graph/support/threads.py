"""What threads share: numbers that are taken once, and work that one of them does for all; and what
each has of its own: context variables set within a block.

Of `build_once`, the first thread that asks works and the others wait for the result, but never if
that thread may be waiting for them. No lock is held meanwhile: a user's code may start threads,
fork, or come back here.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from .locks import in_child

# Tells things of all kinds apart, also from those that are gone; a number is taken without a lock.
SERIALS = itertools.count(1)
_MISSING: Any = object()
Value = TypeVar("Value")


@contextmanager
def set_within(variable: ContextVar[Any], value: Value) -> Iterator[Value]:
    """Set a context variable within a block; yields the value."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


# --- work that is done once -----------------------------------------------------------------------

PATIENCE = 2.0  # seconds; a worker may wait for us in ways not seen here: a join, an import's lock


class _Job:
    """The work of one thread, for which others may wait."""

    __slots__ = ("done", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.done = threading.Event()


_jobs: dict[Any, _Job] = {}  # by table and key
_waits: dict[int, _Job] = {}  # the job that each thread waits for


def build_once(
    table: dict[Any, Any], key: Any, build: Callable[[], Any], most: int | None = None
) -> Any:
    """Return a table's value under a key, built by the first thread that asks; every thread gets
    the same object.

    `build` may run on two threads if one would otherwise wait for the other forever. A table that
    has `most` rows is emptied before it gets another.
    """
    found = table.get(key, _MISSING)
    if found is not _MISSING:  # without a job, whose creation would double the time
        return found
    place = (id(table), key)
    mine = _Job()
    while True:
        found = table.get(key, _MISSING)
        if found is not _MISSING:
            return found
        job = _jobs.setdefault(place, mine)
        if job is mine or not _wait_for(job):
            break
    try:
        built = build()
        if most is not None and len(table) >= most:
            table.clear()
        return table.setdefault(key, built)
    finally:
        if job is mine:
            _jobs.pop(place, None)
            mine.done.set()


def _wait_for(job: _Job) -> bool:
    # False: do it yourself, because its thread waits for this one or takes too long.
    me = threading.get_ident()
    outer = _waits.get(me)  # a finalizer may have come between
    _waits[me] = job  # first: of the threads in a circle, the last one to come here sees all of it
    try:
        return not _leads_to(job, me) and job.done.wait(PATIENCE)
    finally:
        if outer is None:
            del _waits[me]
        else:
            _waits[me] = outer


def _leads_to(job: _Job | None, thread: int) -> bool:
    # From a thread to the one that it waits for, until a circle or an end.
    seen: set[int] = set()
    while job is not None and job.thread not in seen:
        if job.thread == thread:
            return True
        seen.add(job.thread)
        job = _waits.get(job.thread)
    return False


def _forget_others(thread: int) -> None:
    # Other threads do not exist in the child, so their jobs never end.
    for place, job in list(_jobs.items()):
        if job.thread != thread:
            del _jobs[place]
    _waits.clear()


in_child(_forget_others)
