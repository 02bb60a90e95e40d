"""Exceptions that the user's code raised when it met a symbol, explained."""

from __future__ import annotations

import dis
import re
import traceback
from types import FrameType
from typing import Any

from ....core.functions.arguments import Layout
from ....core.functions.recipe import NotCaptured
from ....core.ir.graph import Location
from ....core.trace.trace import NeedsConcrete, Value
from ....errors import TraceError
from ...capture.copies.witness import find_opaque
from ...trace.code_trace import CodeTrace

# The names of our classes for symbols, which a library's message may contain.
INTERNAL = re.compile(r"\b(multigrad|Attributed|Item|Picked|Size|Symbolic\w+|V|Value)\b")


def explain(trace: CodeTrace, layout: Layout, error: Exception) -> NeedsConcrete | NotCaptured:
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


def find_place(trace: CodeTrace, error: Exception) -> tuple[str, int] | None:
    """Return the file and the line of the user's code in a traceback, the innermost."""
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if _is_users(trace, frame):
            place = (frame.f_code.co_filename, line)
    return place


def is_users_own(trace: CodeTrace, error: BaseException) -> bool:
    """Return whether an exception comes from a `raise` statement of the user's."""
    tb = error.__traceback__
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    if tb is None or not _is_users(trace, tb.tb_frame):
        return False
    # Not a call: the library would have raised then.
    operation = tb.tb_frame.f_code.co_code[tb.tb_lasti]
    return dis.opname[operation] == "RAISE_VARARGS"


def _is_users(trace: CodeTrace, frame: FrameType) -> bool:
    # By identity: the code that Dynamo makes to resume after a graph break cannot be hashed.
    return any(frame.f_code is code for code in trace.source.codes)


def kind_name(value: Any) -> str:
    """Return the type name of a user's value for messages, where a symbol is called a tensor."""
    return "tensor" if isinstance(value, Value) else type(value).__name__
