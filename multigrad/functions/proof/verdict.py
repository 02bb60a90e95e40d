"""What a proof found: a graph that may be used, one that may not, or one of which nothing could be
found out; and how much is proven, by `MULTIGRAD_PROVE` and `prove=` where something is defined.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from ...errors import DisprovedError, NotProvenWarning, RuleValueError
from ...graph.ir.graph import Location
from ...graph.support.data import dataclass
from .compare import Difference

VARIABLE = "MULTIGRAD_PROVE"
OFF, ON, ALL = "0", "1", "all"


def how_much() -> str:
    """Return "0" (nothing is proven), "1" (captures, the default) or "all" (each call, too).

    Raises:
        RuleValueError: the variable says something else.
    """
    word = os.environ.get(VARIABLE, "") or ON
    if word not in (OFF, ON, ALL):
        raise RuleValueError(f"{VARIABLE} is 0, 1 or all, got {word!r}")
    return word


def is_asked(prove: bool) -> bool:
    """Return whether something defined with `prove=` is to be proven."""
    word = how_much()
    return word == ALL or (prove and word == ON)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is proven, for messages: "rule 'gate'", where it stands, and the framework that it is
    written in.
    """

    words: str
    code: Any  # of its first function, None where it has none
    home: str

    @property
    def place(self) -> tuple[str, int] | None:
        """The file and line where it is defined."""
        code = self.code
        return None if code is None else (code.co_filename, code.co_firstlineno)


# What is said of a difference.
OURS = "This is a fault of multigrad: please report it"
OURS_BUT_FOR_SIGNS = (
    "Unless its result depends on the signs of vectors, which each library chooses for itself, "
    "this is a fault of multigrad: please report it"
)
VARIES = (
    "It gives other numbers each time that it runs on the same: pass what changes as an argument, "
    "and draw by a key"
)
CHOSEN = (
    "its results depend on what its library leaves open, the signs of vectors or the order of "
    "equal elements"
)
OUT_OF_RANGE = (
    "It makes integers of floats that these do not hold, which is another number in each library: "
    "limit the floats first"
)
NOT_AS_KNOWN = (
    "The library that runs differs there from what is known of its release: please report it"
)


def disprove(
    subject: Subject, difference: Difference, parted: Location | None, blame: str
) -> DisprovedError:
    """Return the error of a graph that is not what was written."""
    where = f" ({Location(*subject.place)})" if subject.place else ""
    line = f". They first differ at line {parted.line}: {parted.text!r}" if parted else ""
    place = (parted.file, parted.line) if parted else subject.place
    return DisprovedError(
        f"{subject.words}{where} differs from its graph, which is not used: {difference}{line}. "
        f"{blame}",
        place,
        subject.home,
    )


def leave_open(subject: Subject, reason: str) -> str:
    """Return why nothing was proven; under MULTIGRAD_PROVE=all, say so at once."""
    if how_much() == ALL:
        file, line = subject.place or ("<unknown>", 1)
        message = f"{subject.words} is not proven: {reason}"
        # Without a module nothing is said: code for all libraries may be proven on another one.
        warnings.warn_explicit(message, NotProvenWarning, file, line, module=subject.home or None)
    return reason


def describe(error: BaseException) -> str:
    """Return what kept an original from running, in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
