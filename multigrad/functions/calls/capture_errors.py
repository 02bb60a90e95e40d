"""Why a function could not be captured: the error, and the place in the user's code.

`explain` is the entry: it reads an exception that the user's code raised when it met a symbol.
"""

from __future__ import annotations

import dis
import re
import types
import warnings
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from ...capture.copies.witness import find_opaque
from ...errors import DisprovedError, NativeRuleWarning, TraceError
from ...graph.ir.graph import Location
from ...trace.trace import NeedsConcrete, Trace, Value
from .arguments import Layout

# The names of our classes for symbols, which a library's message may contain.
INTERNAL = re.compile(r"\b(multigrad|Attributed|Item|Picked|Size|Symbolic\w+|V|Value)\b")


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


def explain(trace: Trace, layout: Layout, error: Exception) -> NeedsConcrete | NotCaptured:
    """Return the error that explains an exception raised where the user's code met a symbol."""
    opaque = find_opaque(trace, error)
    facts = _facts_for(opaque, layout) - trace.facts.keys() if opaque else set()
    if facts:
        return NeedsConcrete(*sorted(facts))
    place = find_place(trace, error)
    suffix = f" ({Location(*place)})" if place else ""
    kind = type(error).__name__
    # A library that was handed a symbol speaks of its class.
    if INTERNAL.search(str(error)) and not is_users_own(trace, error):
        message = f"{trace.kind} {trace.name!r}{suffix} hands a tensor to what needs its numbers"
    else:
        message = f"{trace.kind} {trace.name!r}{suffix} raised {kind} while captured: {error}"
    return NotCaptured(TraceError(message, place))


def _facts_for(kind: str, layout: Layout) -> set[str]:
    if kind == "device":
        return {kind, "device_type"}
    if kind != "shape":
        return {kind}
    return {"shape", *(f"shape:{leaf.name}" for leaf in layout.tensors[1:])}


def find_place(trace: Trace, error: Exception) -> tuple[str, int] | None:
    """Return the file and the line of the user's code in a traceback, the innermost."""
    place, tb = None, error.__traceback__
    while tb is not None:
        if _is_users(trace, tb):
            place = (tb.tb_frame.f_code.co_filename, tb.tb_lineno)
        tb = tb.tb_next
    return place


def is_users_own(trace: Trace, error: BaseException) -> bool:
    """Return whether an exception comes from a `raise` statement of the user's."""
    tb = error.__traceback__
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    if tb is None or not _is_users(trace, tb):
        return False
    # Not a call: the library would have raised then.
    operation = tb.tb_frame.f_code.co_code[tb.tb_lasti]
    return dis.opname[operation] == "RAISE_VARARGS"


def _is_users(trace: Trace, tb: TracebackType) -> bool:
    # By identity: the code that Dynamo makes to resume after a graph break cannot be hashed.
    return any(tb.tb_frame.f_code is code for code in trace.source.codes)


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
