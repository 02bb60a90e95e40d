"""Short locks that a fork finds free, and what a forked child forgets.

Before a fork, the process waits for imports of ours and takes every lock; both processes release
them after it. No lock is held while a user's code runs.
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
    held: Any = getattr(_bootstrap, "_module_locks", {})  # weak references by module
    locks = [
        reference()
        for name, reference in list(held.items())
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
