"""What a library takes for the derivative at a kink, release by release: data that handlers read,
and that `xg.show` tells where a capture rests on it. The library that runs is asked, too: where it
is not as its release is known, that is said, and what it does is what counts.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from weakref import WeakKeyDictionary

from ...errors import NotProvenWarning
from ...graph.ir.graph import Graph
from ...graph.support.class_bases import dataclass
from ...trace.trace import Trace


@dataclass(frozen=True, slots=True)
class Convention:
    """One choice at a kink.

    Attributes:
        since: the first release that makes it; "" where nobody remembers another.
        passes: whether the gradient passes at the kink.
        words: what it is, as a sentence goes on after the library's name and release.
    """

    since: str
    passes: bool
    words: str


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one function.

    Attributes:
        rows: its conventions, of all releases in order.
        version: the release that is installed.
        passes: () -> whether the gradient passes there now, of the library itself.
    """

    rows: Sequence[Convention]
    version: str
    passes: Callable[[], bool]

    def find(self) -> tuple[Convention, bool]:
        """Return the convention of the library that runs, and whether its release is known for
        it.
        """
        own = [row for row in self.rows if _numbers(row.since) <= _numbers(self.version)][-1]
        found = self.passes()
        if found == own.passes:
            return own, True
        return next(row for row in self.rows if row.passes == found), False


AT_KINK = "at the kink of"
UNORDERED = "equal elements in any order:"
# By library and function.
KNOWN: dict[tuple[str, str], Known] = {}
_read: WeakKeyDictionary[Trace, dict[str, None]] = WeakKeyDictionary()


def register_conventions(
    library: str,
    version: str,
    table: Mapping[str, tuple[Callable[[], bool], Sequence[Convention]]],
) -> None:
    """Add a library's conventions by function: how it is asked whether the gradient passes, and
    the releases in order.
    """
    for name, (passes, rows) in table.items():
        KNOWN[library, name] = Known(rows, version, functools.cache(passes))


def passes_at(trace: Trace, name: str) -> bool:
    """Return whether a gradient passes at the kink of a function in the library that the code is
    written in, as it is installed; what has no row passes it.
    """
    known = KNOWN.get((trace.reading.dialect, name))
    if known is None:
        return True
    own, is_known = known.find()
    told = f"{AT_KINK} {name} as {trace.reading.dialect} {known.version} has it: {own.words}"
    if not is_known:
        told += (
            f", which is not what that release is known for: this {trace.reading.dialect} differs"
        )
        warnings.warn(f"captured {told}", NotProvenWarning, stacklevel=2)
    note(trace, told)
    return own.passes


def note(trace: Trace, told: str) -> None:
    _read.setdefault(trace, {})[told] = None


def conventions_read(trace: Trace) -> tuple[str, ...]:
    return tuple(_read.get(trace, ()))


def told_conventions(graph: Graph, kind: str = AT_KINK) -> tuple[str, ...]:
    """Return the same of a graph that was captured, from what it says of its origin."""
    return tuple(each for each in graph.origin.split("; ") if each.startswith(kind))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))
