"""Names of ops: what a library calls them, beside its rows; a dialect's table is made from these.

Written as "op; op: name; op: name name". A name stands for a function that takes what the op's own
function in `xg.xp` takes. One with other arguments or defaults is a row of `binding.Library`, one
that means something else an alias, written out in the dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from types import ModuleType
from typing import Any

from ...graph import ops
from ...trace.xp import all as xp


def spelled(names: str) -> dict[str, Callable[..., Any]]:
    """Return what each name records."""
    found = {}
    for entry in names.split(";"):
        op, _, words = (part.strip() for part in entry.partition(":"))
        record = getattr(xp, ops.OPS[op].in_xp)
        found.update(dict.fromkeys((words or op).split(), record))
    return found


def named(names: str, library: ModuleType, **rooms: Any) -> dict[Any, Callable[..., Any]]:
    """Return what the functions of a library record, by their names in it.

    Args:
        rooms: where names are looked up that begin with this word and a dot.
    """

    def find(name: str) -> Any:
        room, _, rest = name.partition(".")
        return getattr(rooms[room], rest) if room in rooms else attrgetter(name)(library)

    return {find(name): record for name, record in spelled(names).items()}


class AliasesAndMore(Mapping[Any, Callable[..., Any]]):
    """A library's aliases, and those of another one that may be imported later."""

    def __init__(
        self,
        aliases: Mapping[Any, Callable[..., Any]],
        more: Callable[[Any], Callable[..., Any]],
    ) -> None:
        """Take what finds one of the other library's, or raises KeyError."""
        self.aliases, self.more = aliases, more

    def __getitem__(self, function: Any) -> Callable[..., Any]:
        known = self.aliases.get(function)
        return self.more(function) if known is None else known

    def __iter__(self) -> Iterator[Any]:
        return iter(self.aliases)

    def __len__(self) -> int:
        return len(self.aliases)
