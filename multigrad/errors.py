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

    Made of the message and, where they are known, of that file and line.

    Attributes:
        place: that file and line.
    """

    # Kept in `args`: TensorFlow's AutoGraph makes an exception anew in tf.function, of the same
    # class only where that has the constructor of all exceptions.
    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    @property
    def place(self) -> tuple[str, int] | None:
        return self.args[1] if len(self.args) > 1 else None

    def to_keep(self) -> Self:
        """Return this error without the frames that led to it, which hold the call's tensors."""
        return copy.copy(self)


class DisprovedError(TraceError):
    """A captured graph does not compute what the code that it was captured from does, so it is not
    used.

    Made of a message, a place and a framework.

    Attributes:
        home: the framework on which that code runs as it is; "" where it runs on all.
    """

    @property
    def home(self) -> str:
        return self.args[2] if len(self.args) > 2 else ""


class UnsupportedOp(MultigradError):
    """An op that the chosen backend (or dialect) lacks."""


class BackendNotFound(MultigradError, ImportError):
    """A framework is unknown or not installed, or a value belongs to none."""


class StaleTraceError(MultigradError):
    """Compiled code was traced under another rule than the one now in force."""


class GradientError(MultigradError):
    """A gradient has another shape, dtype or count than its input, or ranks apply different rules
    to it.
    """


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
