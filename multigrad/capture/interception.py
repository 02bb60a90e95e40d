"""Interception: a method of a library's class that comes to us while something is captured.

A custom gradient runs its forward on whatever it is given; on symbolic values its own backward would be lost, wherever
it is called from. The method is replaced for as long as a capture runs, in any thread, and put back after the last one.
"""

from __future__ import annotations

import threading
from typing import Any

_ABSENT = object()


class Interception:
    """One method of a class, replaced while captures run; a context manager, entered any number of times."""

    def __init__(self, owner: type, name: str, replacement: Any) -> None:
        self.owner = owner
        self.name = name
        self.replacement = replacement
        self._entered = 0
        self._original: Any = _ABSENT
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            if self._entered == 0:
                self._original = vars(self.owner).get(self.name, _ABSENT)
                setattr(self.owner, self.name, self.replacement)
            self._entered += 1

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._entered -= 1
            if self._entered:
                return
            if self._original is _ABSENT:  # inherited
                delattr(self.owner, self.name)
            else:
                setattr(self.owner, self.name, self._original)
