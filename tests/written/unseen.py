"""A list in which a test counts captures: what a rule adds to it is no change that a capture would
see.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from multigrad.core.trace.trace import Value


class OfOurs:
    __slots__ = ("items",)
    __module__ = "multigrad"

    def __init__(self) -> None:
        self.items: list[Any] = []


class Unseen:
    """Holds what is appended; behind an object of ours, into which no capture looks."""

    def __init__(self) -> None:
        self._held = OfOurs()

    @property
    def items(self) -> list[Any]:
        """All of them."""
        return self._held.items

    def append(self, item: Any) -> None:
        """Add an item; of a symbol its class, as no symbol may outlive its capture."""
        self.items.append(type(item) if isinstance(item, Value) else item)

    def note_capture(self, value: Any, item: Any = 1) -> None:
        """Add an item if a value is a symbol: a rule also runs beside its graph."""
        if isinstance(value, Value):
            self.items.append(item)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def __eq__(self, other: object) -> bool:
        return self.items == (other.items if isinstance(other, Unseen) else other)

    __hash__ = None  # type: ignore[assignment]
