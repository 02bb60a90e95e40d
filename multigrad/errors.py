"""Every error that multigrad raises on purpose.

All are `MultigradError`; where Python has a built-in class that users already catch (KeyError for
an unknown rule, ImportError for a missing framework), the error is that class too.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Self


class MultigradError(Exception):
    """Base class of all errors raised by multigrad."""

    def __str__(self) -> str:
        # KeyError.__str__ would show the repr of the message, in quotes.
        return " ".join(str(part) for part in self.args)


class RuleError(MultigradError, KeyError):
    """A rule is unknown, registered twice, has a wrong signature or got wrong parameters."""


class RuleValueError(RuleError, ValueError):
    """A RuleError about a value: an unknown activation, scope or key."""


class RuleTypeError(RuleError, TypeError):
    """A RuleError about a parameter or an argument of the wrong kind."""


class TraceError(MultigradError):
    """A rule could not be captured as a graph; the message names the user's file and line.

    Attributes:
        place: that file and line, where they are known.
    """

    def __init__(self, message: str, place: tuple[str, int] | None = None) -> None:
        super().__init__(message)
        self.place = place

    def to_keep(self) -> Self:
        """Return this error without the frames that led to it, which hold the call's tensors."""
        return copy.copy(self)


class DisprovedError(TraceError):
    """A captured graph does not compute what the code that it was captured from does, so it is not
    used.

    Attributes:
        home: the framework on which that code runs as it is; "" where it runs on all.
    """

    def __init__(self, message: str, place: tuple[str, int] | None = None, home: str = "") -> None:
        super().__init__(message, place)
        self.home = home


class UnsupportedOp(MultigradError):
    """An op that the chosen backend (or dialect) lacks."""


class BackendNotFound(MultigradError, ImportError):
    """A framework is unknown or not installed, or a value belongs to none."""


class StaleTraceError(MultigradError):
    """Compiled code was traced under another rule than the one now in force."""


class GradientError(MultigradError):
    """A gradient has another shape, dtype or count than its input."""


class FormatError(MultigradError, ValueError):
    """A saved file or document is damaged, too large, of a newer version, or could not be saved."""


class NativeRuleWarning(UserWarning):
    """A rule could not be captured and runs as it is, in one framework only."""


class NotProvenWarning(UserWarning):
    """Under MULTIGRAD_PROVE=all: a capture could not be compared with the code it came from."""


def suggest(given: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the closest known word, or an empty string."""
    import difflib  # 2 ms, and only errors need it

    by_lower = {word.lower(): word for word in known}
    close = difflib.get_close_matches(str(given).lower(), by_lower, n=1, cutoff=0.5)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""
