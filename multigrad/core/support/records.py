"""Bases of our classes: `record` makes dataclasses that load in a third of the time, as the core
has dozens; `cached_property`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property(functools.cached_property):
        """Python's, without the lock that it has before Python 3.12."""

        def __init__(self, function):
            # A forked child would wait forever for the thread of its parent that held the lock.
            super().__init__(function)
            self.lock = nullcontext()


C = TypeVar("C")


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def record(*, eq: bool = False) -> Callable[[type[C]], type[C]]:
    """Make a class a dataclass with slots that type checkers hold to be frozen.

    Python itself lets fields be assigned: what refuses it, and a `repr` of its own, take two thirds
    of the time in which a dataclass is made (0.4 ms of four fields, 0.9 ms of twenty, on Python
    3.11). What users are given, as nodes and graphs, is frozen in earnest.

    Args:
        eq: whether records with equal fields are equal, and have one hash.
    """

    def make(cls: type[C]) -> type[C]:
        if "__repr__" not in vars(cls):
            cls.__repr__ = show  # type: ignore[assignment]
        return dataclass(repr=False, eq=eq, unsafe_hash=eq, slots=True, match_args=False)(cls)

    return make


def show(self: Any) -> str:
    rows = [f"{n}={getattr(self, n)!r}" for n, f in self.__dataclass_fields__.items() if f.repr]
    return f"{type(self).__qualname__}({', '.join(rows)})"
