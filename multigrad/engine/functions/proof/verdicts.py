"""What a proof says: an error, a warning, or nothing.

A graph is used, or it is refused (`disprove`), or nothing could be found out (`leave_open`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....core.functions.proof import ALL, how_much
from ....core.ir.graph import Location
from ....errors import DisprovedError, NotProvenWarning
from .compare import Disagreement


@dataclass(frozen=True, slots=True)
class ProofSubject:
    """What is proven, for messages: "rule 'gate'", in `words`.

    Attributes:
        code: of its first function; None: that has none.
        home: the framework that it is written for, "" if for any.
        read_as: the library that its names are read as, where they are compared on `home`, the
            library of the call.
    """

    words: str
    code: Any
    home: str
    read_as: str = ""

    @property
    def place(self) -> tuple[str, int] | None:
        code = self.code
        return None if code is None else (code.co_filename, code.co_firstlineno)


# Whose fault a difference is: the last sentence of its message.
OURS = "This is a fault of multigrad: please report it"
OURS_BUT_FOR_SIGNS = (
    "Unless its result depends on the signs of vectors, which each library chooses for itself, "
    "this is a fault of multigrad: please report it"
)
OURS_BUT_FOR_ONE_OUTPUT = (
    "If it returns one tensor twice, its library takes both for the last output: return a copy, "
    "such as y.clone(). If it returns two, this is a fault of multigrad: please report it"
)
MENDED = (
    "It is known of {}, which multigrad corrects. If this is something else, it is a fault of "
    "multigrad: please report it"
)
VARIES = (
    "It gives other numbers each time that it runs on the same: pass what changes as an argument, "
    "and draw by a key"
)
OUT_OF_RANGE = (
    "It makes integers of floats that these do not hold, which is another number in each library: "
    "limit the floats first"
)
NOT_AS_KNOWN = (
    "The library that runs differs there from what is known of its release: please report it"
)
MEANS_ANOTHER = (
    "Its names are read as {0}'s, and on tensors of {1} they mean something else: say which it is "
    "written in, dialect={1!r} or dialect={0!r}"
)
# Why nothing was proven.
CHOSEN = (
    "its results depend on what its library leaves open, the signs of vectors or the order of "
    "equal elements"
)


def disprove(
    subject: ProofSubject, difference: Disagreement, parted: Location | None, blame: str
) -> DisprovedError:
    """Return the error for a graph that computes something else than its code.

    `parted` is the first line after which the two differ, if it is known; `blame` says whose fault
    it is, by one of the sentences above.
    """
    location = f" ({Location(*subject.place)})" if subject.place else ""
    line = f". They first differ at line {parted.line}: {parted.text!r}" if parted else ""
    place = (parted.file, parted.line) if parted else subject.place
    return DisprovedError(
        f"{subject.words}{location} differs from its graph, which is not used: {difference}{line}. "
        f"{blame}",
        place,
        subject.home,
    )


def leave_open(subject: ProofSubject, reason: str) -> str:
    """Return the reason why nothing was proven; under MULTIGRAD_PROVE=all, warn with it."""
    if how_much() == ALL and not subject.read_as:
        file, line = subject.place or ("<unknown>", 1)
        message = f"{subject.words} is not proven: {reason}"
        # Without a module nothing is said: code for all libraries may be proven on another one.
        warnings.warn_explicit(message, NotProvenWarning, file, line, module=subject.home or None)
    return reason


def describe(error: BaseException) -> str:
    # Code that names no library is run on NumPy first, and other libraries' arrays have more.
    if isinstance(error, AttributeError) and isinstance(error.obj, np.ndarray | np.generic):
        advice = "say in which library it is written: dialect='torch', for example"
        return f"NumPy's arrays have no .{error.name}; {advice}"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
