"""Why a function could not be captured: the error, and the place in the user's code. The function
then runs as written, and the engine warns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...errors import DisprovedError, TraceError
from ..ir.graph import Location
from ..support.lazy_modules import provided


class NotCaptured(Exception):
    """A function cannot be captured, or its graph does not serve.

    Attributes:
        error: says why; a copy without its traceback, whose frames would keep the call's tensors.
        kinds: of what a graph would leave out; see `Trace.omissions`.
    """

    def __init__(self, error: TraceError, kinds: Iterable[str] = ()) -> None:
        super().__init__(str(error))
        self.error = error.to_keep()
        self.error.__cause__ = error.__cause__
        self.kinds = frozenset(kinds)

    def with_cause(self) -> TraceError:
        """Return the error, to be raised with what this one was raised from as its cause."""
        self.error.__cause__ = self.__cause__
        return self.error


def defined_at(functions: Iterable[object]) -> Location | None:
    for function in functions:
        code = getattr(function, "__code__", None)
        if code is not None:
            return Location(code.co_filename, code.co_firstlineno, "")
    return None


@provided
def warn_native(functions: Iterable[Any], error: TraceError) -> None:
    """Warn once, at the line that cannot be captured, that a rule runs as written."""


@provided
def warn_disproved(error: DisprovedError, module: str) -> None:
    """Warn that a function runs as written because its graph computes something else."""
