"""Why a function could not be captured: the error, and the place in the user's code.

`explained_errors.py` reads what the user's code raised when it met a symbol.
"""

from __future__ import annotations

import types
import warnings
import weakref
from collections.abc import Iterable
from typing import Any

from ...errors import DisprovedError, NativeRuleWarning, TraceError
from ..ir.graph import Location
from ..trace.trace import Value


class NotCaptured(Exception):
    """A function cannot be captured, or its graph does not serve.

    Attributes:
        error: says why; a copy, as the frames of a traceback refer to errors in their turn.
        kinds: of what a graph would leave out; see `Trace.omissions`.
    """

    def __init__(self, error: TraceError, kinds: Iterable[str] = ()) -> None:
        super().__init__(str(error))
        self.error = error.to_keep()
        self.error.__cause__ = error.__cause__
        self.kinds = frozenset(kinds)


def defined_at(functions: Iterable[object]) -> Location | None:
    for function in functions:
        code = getattr(function, "__code__", None)
        if code is not None:
            return Location(code.co_filename, code.co_firstlineno, "")
    return None


# The functions of whose running as written users were warned.
_warned_of: weakref.WeakSet[types.FunctionType] = weakref.WeakSet()
# The code as written raises them again.
MISTAKES = (AttributeError, ImportError, NameError, ZeroDivisionError)


def warn_native(functions: Iterable[Any], error: TraceError) -> None:
    """Warn once, at the line that cannot be captured, that a rule runs as written."""
    function = next(iter(functions), None)
    if isinstance(error, DisprovedError) or isinstance(error.__cause__, MISTAKES):
        return  # the proof has warned, or the code as written raises it
    if isinstance(function, types.FunctionType):
        if function in _warned_of:
            return
        _warned_of.add(function)
    defined = defined_at((function,))
    file, line = error.place or ((defined.file, defined.line) if defined else ("<unknown>", 1))
    # The line of use would say less, and is behind the frames of a framework.
    warnings.warn_explicit(
        f"{error}. It runs as written, in this framework only (register it with native=True to "
        "say that this is meant)",
        NativeRuleWarning,
        file,
        line,
        module=getattr(function, "__module__", None),
    )


def warn_disproved(error: DisprovedError, module: str) -> None:
    """Warn that a function runs as written because its graph computes something else."""
    file, line = error.place or ("<unknown>", 1)
    scope = f"on {error.home} only" if error.home else "everywhere"
    message = f"{error}. It runs as written, {scope}"
    warnings.warn_explicit(message, NativeRuleWarning, file, line, module=module)


def kind_name(value: Any) -> str:
    """Return the type name of a user's value for messages, where a symbol is called a tensor."""
    return "tensor" if isinstance(value, Value) else type(value).__name__
