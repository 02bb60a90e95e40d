"""What a dataclass with slots needs to be held weakly: from Python 3.11 on `weakref_slot=True`."""

from __future__ import annotations


class HeldWeakly:
    """The base of a class with slots whose objects weak references may point to."""

    __slots__ = ("__weakref__",)
