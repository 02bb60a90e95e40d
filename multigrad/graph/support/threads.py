"""What threads share: short locks that a fork finds free, and work that is done once.

No lock is held while a user's code runs: it may start threads, fork, or come back here. Whoever
asks first works; the others wait for the result, but never where the one who works may be waiting
for them.
"""

from __future__ import annotations

import _imp
import os
import sys
import threading
import time
from collections.abc import Callable
from importlib import _bootstrap
from typing import Any

PATIENCE = 2.0  # seconds; a worker may wait for us in ways not seen here: a join, an import's lock
IMPORTING = 10.0  # seconds; longer than a framework takes
# What we import: our own parts (multigrad_torch, ...), what we depend on, and the standard library.
OURS = __name__.partition(".")[0]
THEIRS = frozenset({"ml_dtypes", "numpy", "optree", "scipy"}) | sys.stdlib_module_names
_MISSING: Any = object()

# --- locks ----------------------------------------------------------------------------------------

_locks: list[Any] = []


def make_lock() -> Any:
    """Return a lock for a few statements of our own; a forked child finds it free, what it guards
    complete.

    It is re-entrant, as the garbage collector may run a finalizer of the user's anywhere.
    """
    lock = threading.RLock()
    _locks.append(lock)
    return lock


def in_child(forget: Callable[[int], None]) -> None:
    """Let a forked child forget what threads it lacks were doing: `forget(the thread it has)`."""
    _forgets.append(forget)


_forgets: list[Callable[[int], None]] = []


def _acquire_all() -> None:
    _await_imports()
    for lock in _locks:
        lock.acquire()


def _release_all() -> None:
    for lock in reversed(_locks):
        lock.release()
    _imp.release_lock()


def _await_imports() -> None:
    """Wait until no other thread imports what we import, and let none begin: a child would wait for
    it for ever.

    Python's own lock, which is taken here, guards but the beginning of an import. Most of multigrad
    is imported at its first use, so that other threads' first uses are where this happens.
    """
    end = time.monotonic() + IMPORTING
    while True:
        _imp.acquire_lock()
        if not _others_import() or time.monotonic() > end:
            return
        _imp.release_lock()
        time.sleep(0.0005)


def _others_import() -> bool:
    """Return whether another thread is importing something of ours."""
    me = threading.get_ident()
    held: Any = getattr(_bootstrap, "_module_locks", {})  # weak references by module
    locks = [
        reference()
        for name, reference in list(held.items())
        if name.startswith(OURS) or name.partition(".")[0] in THEIRS
    ]
    return any(getattr(lock, "owner", None) not in (None, me) for lock in locks)


# --- work that is done once -----------------------------------------------------------------------


class _Job:
    """What one thread works on, and others may wait for."""

    __slots__ = ("done", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.done = threading.Event()


_jobs: dict[Any, _Job] = {}  # by table and key
_waits: dict[int, _Job] = {}  # what a thread waits for


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
    """Wait until a job is done; False: do it yourself, as its thread waits for this one or takes
    too long.
    """
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
    """Return whether a job's thread waits for a thread, by way of others too."""
    seen: set[int] = set()
    while job is not None and job.thread not in seen:
        if job.thread == thread:
            return True
        seen.add(job.thread)
        job = _waits.get(job.thread)
    return False


def _forget_others() -> None:
    """Let a forked child do itself what threads that it lacks were doing."""
    me = threading.get_ident()
    for place, job in list(_jobs.items()):
        if job.thread != me:
            del _jobs[place]
    _waits.clear()
    for forget in _forgets:
        forget(me)
    _release_all()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_acquire_all, after_in_parent=_release_all, after_in_child=_forget_others
    )
