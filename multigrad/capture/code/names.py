"""Names of ops: what a library calls them, beside its rows; a dialect's table is made from these.

Written as "op; op: name; op: name name". A name stands for a function that takes what the op's own
function in `xg.xp` takes. One with other arguments or defaults is a row of `binding.Library`, one
that means something else an alias, written out in the dialect.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from types import ModuleType
from typing import Any

from ...graph import ops
from ...trace.xp import all as xp
from .binding import WORDS, Library, entries


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


def handlers(rows: Mapping[Any, str]) -> dict[str, Callable[..., Any]]:
    """Return what each name records, as it is called: by the module that has ours, "div: div
    divide; add".
    """
    return {name: meaning for meaning, name, _ in entries(rows)}


def written(rows: Mapping[Any, str]) -> dict[str, Callable[..., Any]]:
    """Return what methods record, by name, where no library is there to tell what they take.

    Args:
        rows: as those of `binding.Library`, with what each takes: "unsqueeze(x, dim): expand_dims;
            tril(x, diagonal=0): tril(diagonal=k)".
    """
    found = {}
    for room, text in rows.items():
        home = sys.modules[room] if isinstance(room, str) else room
        for entry in text.split(";"):
            heading, _, own = " ".join(entry.split()).partition("): ")
            name, _, parameters = heading.partition("(")
            stub = eval(f"lambda {parameters}: None")
            stub.__name__ = name
            own, _, words = own.partition("(")
            given = dict(WORDS.findall(words))
            found[name] = Library(home).bound(stub, getattr(home, own), given)
    return found


def reflected(record: Callable[[Any, Any], Any], name: str = "") -> Callable[[Any, Any], Any]:
    """Return what a reflected operator records: `x.__rsub__(y)` is `y - x`."""

    def call(right: Any, left: Any) -> Any:
        return record(left, right)

    call.__name__ = call.__qualname__ = name or record.__name__
    return call


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
