"""Emitted source: compiled once, and registered in `linecache`, so that a traceback shows it."""

from __future__ import annotations

import functools
import keyword
import linecache
import re
import weakref
from typing import Any

from ..graph.support.threads import SERIALS


def compile_source(source: str, name: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Execute emitted source once, visible to tracebacks, and return its namespace."""
    filename = f"<multigrad rule {name} {next(SERIALS)}>"
    # The source is ours, emitted from a verified graph; rules loaded from elsewhere are graphs, not
    # code.
    exec(compile(source, filename, "exec"), namespace)  # noqa: S102
    namespace["__source__"] = _Source(filename, source)
    return namespace


class _Source:
    """Has the source of emitted code shown in tracebacks while the code, which holds it, lives."""

    def __init__(self, filename: str, source: str) -> None:
        lines = _Lines(source.splitlines(keepends=True))
        # No line of Python runs when it dies: an interrupt met there would be printed and lost.
        lines.owner = weakref.ref(self, functools.partial(linecache.cache.pop, filename))
        linecache.cache[filename] = (len(source), None, lines, filename)


class _Lines(list[str]):
    """The lines of a source; they hold the weak reference that removes them."""

    owner: weakref.ref[_Source]


def identifier(name: str) -> str:
    """Return a Python identifier close to a rule's name."""
    word = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "rule"
    return f"rule_{word}" if word[0].isdigit() or keyword.iskeyword(word) else word
