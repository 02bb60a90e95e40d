"""What threads share: numbers, locks, work that one of them does for all, a pause of the collector;
and what each has of its own: context variables set within a block.

Before a fork, the process waits for imports of ours and takes every lock; both processes release
them after it. Of `build_once`, the first thread that asks works and the others wait for the result,
but never if that thread may be waiting for them. No lock is held while a user's code runs: it may
start threads, fork, or come back here.
"""

from __future__ import annotations

import _imp
import gc
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import _bootstrap, import_module
from types import ModuleType
from typing import Any, TypeVar

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


# --- locks that a fork finds free, and what a forked child forgets --------------------------------
IMPORTING = 10.0  # seconds; longer than a framework takes
# What we import: our own parts (multigrad_torch, ...), what we depend on, and the standard library.
OURS = __name__.partition(".")[0]
THEIRS = frozenset({"ml_dtypes", "numpy", "optree", "scipy"}) | sys.stdlib_module_names

# All locks, in the order in which a fork takes them; modules make them once, at import.
_locks: list[Any] = []
_forgets: list[Callable[[int], None]] = []


def make_lock() -> Any:
    """Return a lock for a few statements of our own.

    A forked child finds it free, and what it guards complete. It is re-entrant, because the garbage
    collector may run a user's finalizer anywhere.
    """
    lock = threading.RLock()
    _locks.append(lock)
    return lock


def in_child(forget: Callable[[int], None]) -> None:
    """Call `forget` in a forked child, with the id of the only thread that it has."""
    _forgets.append(forget)


def _acquire_all() -> None:
    _await_imports()
    for lock in _locks:
        lock.acquire()


def _release_all() -> None:
    for lock in reversed(_locks):
        lock.release()
    _imp.release_lock()


def _await_imports() -> None:
    # Until no other thread imports what we import, and none can begin: a child would wait for it
    # forever. Python's lock, taken here, guards only the beginning of an import, and most of
    # multigrad is imported at its first use, also by other threads.
    end = time.monotonic() + IMPORTING
    while True:
        _imp.acquire_lock()
        if not _others_import() or time.monotonic() > end:
            return
        _imp.release_lock()
        time.sleep(0.0005)


def _others_import() -> bool:
    # CPython keeps the locks of unfinished imports in a private table.
    me = threading.get_ident()
    module_locks: Any = getattr(_bootstrap, "_module_locks", {})  # weak references by module
    locks = [
        reference()
        for name, reference in list(module_locks.items())
        if name.startswith(OURS) or name.partition(".")[0] in THEIRS
    ]
    return any(getattr(lock, "owner", None) not in (None, me) for lock in locks)


def _release_in_child() -> None:
    me = threading.get_ident()
    for forget in _forgets:
        forget(me)
    _release_all()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_acquire_all, after_in_parent=_release_all, after_in_child=_release_in_child
    )


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
    value = table.get(key, _MISSING)
    if value is not _MISSING:  # without a job, whose creation would double the time
        return value
    job_key = (id(table), key)
    own_job = _Job()
    while True:
        value = table.get(key, _MISSING)
        if value is not _MISSING:
            return value
        job = _jobs.setdefault(job_key, own_job)
        if job is own_job or not _wait_for(job):
            break
    try:
        result = build()
        if most is not None and len(table) >= most:
            table.clear()
        return table.setdefault(key, result)
    finally:
        if job is own_job:
            _jobs.pop(job_key, None)
            own_job.done.set()


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
    threads: set[int] = set()
    while job is not None and job.thread not in threads:
        if job.thread == thread:
            return True
        threads.add(job.thread)
        job = _waits.get(job.thread)
    return False


def _forget_others(thread: int) -> None:
    # Other threads do not exist in the child, so their jobs never end.
    for place, job in list(_jobs.items()):
        if job.thread != thread:
            del _jobs[place]
    _waits.clear()


in_child(_forget_others)


# --- a pause of the garbage collector, which all threads share ------------------------------------
_pause_lock = make_lock()
# One entry per import in progress; the first says whether the collector was on.
_pauses: list[bool] = []


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector, until the last such block ends.

    All that is made meanwhile is then as old as if the collector had kept it for long.
    """
    if gc.isenabled():
        gc.collect(1)  # now, as garbage of others would age, too
    # Several threads may import at once; the last to leave restores what the first found.
    with _pause_lock:
        _pauses.append(gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _pause_lock:
            was_on = _pauses[0]
            _pauses.pop()
            if was_on and not _pauses:
                if gc.get_freeze_count() == 0:  # all into the oldest generation
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()


def load_module(name: str) -> ModuleType:
    """Return a module of ours, imported with the collector paused: while many objects are made, it
    would look through all that the frameworks hold.
    """
    if name in sys.modules:
        return import_module(name)  # which waits for another thread's import of it
    with collector_paused():
        return import_module(name)
