"""What code reads besides its arguments, in compiled code: Dynamo guards on what it sees read.

So traced code reads it, too, before it calls what was captured (`ask` in function_calls.py and in
the core's compile.py). It calls functions that are made here, with the globals and cells of the
functions that read:

    class Atan: slope = 2.0           def watch():
    def curve(x):                         return (id(Atan), Atan.slope)
        return x * Atan.slope         its globals are those of `curve`

A class that Dynamo can read by itself (`OwnClass`) has these guards anyway.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np

from multigrad.core.functions.recipe import NotCaptured
from multigrad.core.lowering.lower import compile_source
from multigrad.engine.capture.user_code.inspection import WRAPPED
from multigrad.engine.capture.user_code.paths import ATOMS, BUFFERS, CONTAINERS, MISSING, is_record
from multigrad.engine.capture.user_code.reads import LENGTH, Reads
from multigrad.engine.functions.function import Function
from multigrad.errors import TraceError


def reads_of(function: Function) -> tuple[Reads, ...]:
    return tuple(fact for fact in sorted(function.captures.facts) if isinstance(fact, Reads))


def watches(subject: str, reads: Reads) -> list[Callable[[], tuple[Any, ...]]]:
    """Return functions that read what a fact is about, in code that Dynamo can trace.

    Each has the globals and cells of a function that reads them, so that the guards are the same.
    """
    if reads.anchor() is None:  # a function that is gone
        return []
    rows: dict[int, tuple[Any, list[str], dict[str, Any]]] = {}
    for path, find in reads.finds.items():
        # The last function on the way: its globals and cells are where the path goes on.
        starts = [n for n, (kind, _) in enumerate(path) if kind in ("global_of", "cell_of")]
        start = starts[-1] if starts else 0
        anchor = reads.at(path[:start])
        _, texts, cells = rows.setdefault(id(anchor), (anchor, [], {}))
        value = find()
        # An instance binds a method anew each time: its class is read.
        owner = reads.at(path[:-1]) if type(value) is types.FunctionType else type
        is_method = getattr(type(owner), str(path[-1][1]), None) is value
        text = _write_read(subject, path[start:], value, anchor, cells, is_method=is_method)
        texts += [text] if text else []
    return [_watch(*row) for row in rows.values() if row[1]]


def _watch(anchor: Any, texts: list[str], cells: dict[str, Any]) -> Callable[[], tuple[Any, ...]]:
    source = f"def make({', '.join(cells)}):\n    return lambda: ({', '.join(texts)},)\n"
    code = compile_source(source, "watch", {})["make"](*cells).__code__
    contents = tuple(cells[name] for name in code.co_freevars)
    return types.FunctionType(code, getattr(anchor, "__globals__", {}), "watch", None, contents)


def _write_read(
    subject: str,
    path: Any,
    value: Any,
    anchor: Any,
    cells: dict[str, Any],
    *,
    is_method: bool,
) -> str:
    (kind, place), *steps = path
    text = place if kind == "global_of" else f"cell_{place}" if kind == "cell_of" else "anchor"
    if kind == "cell_of":
        cells[text] = anchor.__closure__[place]
    elif kind != "global_of":
        cells[text], steps = types.CellType(anchor), path
    for kind, place in steps:
        if (kind, place) == LENGTH:
            return f"len({text})"
        if kind == "environment_of":
            return f"tuple({text}.items())"
        if value is MISSING and (kind, place) == path[-1]:
            return f"hasattr({text}, {place!r})" if kind == "stored" else f"{place!r} in {text}"
        if kind in ("stored", "getattr"):
            is_last = (kind, place) == path[-1]
            text = f"type({text}).{place}" if is_last and is_method else f"{text}.{place}"
        elif kind == "item_of":
            text = f"{text}[{place!r}]"
        elif kind != "function_of":
            text = place if kind == "module_of" else text
            raise NotCaptured(TraceError(f"{subject} reads {text}, on which no compiler guards"))
    if isinstance(value, (set, frozenset, *BUFFERS)):
        raise NotCaptured(TraceError(f"{subject} reads {text}, on which no compiler guards"))
    # These have guards by what they hold, or by the object around them; of an array compiled code
    # has the values that it was traced with.
    is_held = isinstance(value, (*CONTAINERS, *WRAPPED, types.CodeType, np.ndarray))
    if is_held or is_record(value):
        return ""
    return text if type(value) in ATOMS else f"id({text})"
