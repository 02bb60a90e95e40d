"""What a library takes for the derivative at a kink, release by release: data that handlers read,
and that `xg.show` tells where a capture rests on it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from ..tracing.trace import Trace


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


# By library and function: those of all releases in order, and the release that is installed.
KNOWN: dict[tuple[str, str], tuple[Sequence[Convention], str]] = {}
_read: WeakKeyDictionary[Trace, dict[str, None]] = WeakKeyDictionary()


def register_conventions(
    library: str, version: str, table: Mapping[str, Sequence[Convention]]
) -> None:
    """Add a library's conventions by function, of each the releases in order."""
    for name, rows in table.items():
        KNOWN[library, name] = rows, version


def passes_at(trace: Trace, name: str) -> bool:
    """Return whether a gradient passes at the kink of a function in the library that the code is
    written in, as it is installed; what has no row passes it.
    """
    rows, version = KNOWN.get((trace.dialect, name), ((), ""))
    if not rows:
        return True
    own = [row for row in rows if _numbers(row.since) <= _numbers(version)][-1]
    if len(rows) > 1:  # else all releases are alike
        told = f"at the kink of {name} as {trace.dialect} {version} has it: {own.words}"
        _read.setdefault(trace, {})[told] = None
    return own.passes


def conventions_read(trace: Trace) -> tuple[str, ...]:
    """Return in words the conventions that a capture rests on."""
    return tuple(_read.get(trace, ()))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))
