"""Bases of our classes: `cached_property`, texts."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property(functools.cached_property):
        """Python's, without the lock that it has before Python 3.12."""

        def __init__(self, function):
            # A forked child would wait forever for the thread of its parent that held the lock.
            super().__init__(function)
            self.lock = nullcontext()


class Shown(str):
    """A text for readers: a prompt and a notebook show it as printed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
