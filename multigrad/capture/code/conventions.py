"""The derivative that a library uses at a kink, by release: data for handlers and for `xg.show`.

The installed library is asked too. If it differs from what is known of its release, a warning says
so and its own answer counts.
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
    """One choice of the derivative at a kink.

    Attributes:
        since: the first release that makes it; "" if no other is known.
        passes: whether the gradient passes at the kink.
        words: continues a sentence after the library's name and release.
    """

    since: str
    passes: bool
    words: str


@dataclass(frozen=True, slots=True)
class FunctionConventions:
    """The conventions of one function.

    Attributes:
        rows: those of all releases, in order.
        version: the installed release.
        passes: () -> whether the gradient passes, asked of the library itself.
    """

    rows: Sequence[Convention]
    version: str
    passes: Callable[[], bool]

    def find(self) -> tuple[Convention, bool]:
        """Return the installed library's convention, and whether its release is known for it."""
        own = [row for row in self.rows if _numbers(row.since) <= _numbers(self.version)][-1]
        found = self.passes()
        if found == own.passes:
            return own, True
        return next(row for row in self.rows if row.passes == found), False


AT_KINK = "at the kink of"
UNORDERED = "equal elements in any order:"
# By library and function; filled when a backend registers its dialect.
KNOWN: dict[tuple[str, str], FunctionConventions] = {}
# What each capture has relied on; weak, so that an entry goes with its trace.
_read: WeakKeyDictionary[Trace, dict[str, None]] = WeakKeyDictionary()


def register_conventions(
    library: str,
    version: str,
    table: Mapping[str, tuple[Callable[[], bool], Sequence[Convention]]],
) -> None:
    """Add a library's conventions by function: a probe of it, and the releases in order."""
    for name, (passes, rows) in table.items():
        KNOWN[library, name] = FunctionConventions(rows, version, functools.cache(passes))


def passes_at(trace: Trace, name: str) -> bool:
    """Return whether a gradient passes at a function's kink in the installed library of the code.

    It passes in a function without a row.
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
    """Return the conventions that a captured graph relies on, from its origin."""
    return tuple(each for each in graph.origin.split("; ") if each.startswith(kind))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))
