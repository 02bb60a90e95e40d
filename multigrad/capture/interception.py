"""Interception: a method of a library's class that comes to us while something is captured.

A custom gradient runs its forward on whatever it is given; on symbolic values its own backward
would be lost, wherever it is called from. The method is replaced for as long as a capture runs, in
any thread, and put back after the last one.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from ..ground.threads import in_child, make_lock

_ABSENT = object()


class Interception:
    """One method of a class, replaced while captures run; a context manager, entered any number of
    times.
    """

    def __init__(self, owner: type, name: str, replacement: Any) -> None:
        self.owner = owner
        self.name = name
        self.replacement = replacement
        self._entered: Counter[int] = Counter()  # by thread
        self._original: Any = _ABSENT
        self._lock = make_lock()
        in_child(self._forget_others)

    def __enter__(self) -> None:
        with self._lock:
            if not self._entered:
                self._original = vars(self.owner).get(self.name, _ABSENT)
                setattr(self.owner, self.name, self.replacement)
            self._entered[threading.get_ident()] += 1

    def __exit__(self, *exception: object) -> None:
        thread = threading.get_ident()
        with self._lock:
            self._entered[thread] -= 1
            if not self._entered[thread]:
                del self._entered[thread]
                self._restore()

    def _restore(self) -> None:
        """Put the method back where no capture runs."""
        if self._entered:
            return
        if self._original is _ABSENT:  # inherited
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self._original)

    def _forget_others(self, own: int) -> None:
        """In a forked child: captures on threads that it lacks never end."""
        if self._entered:
            mine = self._entered[own]
            self._entered = Counter({own: mine} if mine else {})
            self._restore()
