"""Writes down which rows of the dialects' tables captures look up; loaded by `sitecustomize`.

The places where a table is asked are replaced as their modules are imported, so that nothing is
imported before its time. A line is written as soon as it is known: many processes are killed.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

FOLDER = "MULTIGRAD_NAMES"  # where the lines are written
CORPUS = "MULTIGRAD_NAMES_CORPUS"
# By dialect: how people write a place, and what it is. The first that shows a function names it.
PLACES: dict[str, dict[str, str]] = {}
OURS = ("/multigrad/", "/multigrad_")
LIBRARIES = tuple(f"/site-packages/{name}/" for name in ("torch", "jax", "tensorflow", "keras"))
# What pybind11 calls the room of a function, which tells of the compiler.
BINDING = re.compile(r"pybind11\w+\.")

_seen: set[tuple[Any, ...]] = set()
_names: dict[str, dict[int, tuple[Any, str]]] = {}


def note(library: str, kind: str, key: Any) -> None:
    """Write down that a row is used, and in which line of a program."""
    place = find_place(sys._getframe(2))
    if (line := (library, kind, id(key), place)) in _seen:
        return
    _seen.add(line)
    name = key if isinstance(key, str) else name_of(library, key)
    words = [os.environ.get(CORPUS, ""), library, kind, name, place]
    with Path(os.environ[FOLDER], f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(words) + "\n")


def find_place(frame: FrameType | None) -> str:
    """Return the innermost line that is neither ours nor of a library with a dialect."""
    last = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if not any(part in file for part in OURS):
            last = f"{file}:{frame.f_lineno}"
            if not any(part in file for part in LIBRARIES) and "importlib" not in file:
                return last
        frame = frame.f_back
    return last


def name_of(library: str, key: Any) -> str:
    """Return how people write a function, or where it stands where no module shows it."""
    if library not in _names:
        _names[library] = shown_names(library)
    _, name = _names[library].get(id(key), (None, ""))
    return name or fingerprint(key)


def fingerprint(key: Any) -> str:
    """Return what tells a function by its module and name."""
    own = getattr(key, "__self__", None)
    room = getattr(key, "__module__", None) or getattr(own, "__name__", "")
    named = getattr(key, "__qualname__", None) or getattr(key, "__name__", None)
    return f"{room}:{BINDING.sub('', named or type(key).__name__)}"


def shown_names(library: str) -> dict[int, tuple[Any, str]]:
    """Return the public names of a library's functions by `id`, in modules that are imported."""
    found: dict[int, tuple[Any, str]] = {}
    for shown, place in places().get(library, {}).items():
        holder: Any = sys.modules.get(place)
        if holder is None:
            room, _, name = place.rpartition(".")
            holder = getattr(sys.modules.get(room), name, None)
        if holder is None:
            continue
        names = vars(holder) if isinstance(holder, ModuleType) else dir(holder)
        for name in sorted(names):
            value = None if name.startswith("_") else getattr(holder, name, None)
            if callable(value):
                found.setdefault(id(value), (value, f"{shown}.{name}"))
    return found


def places() -> dict[str, dict[str, str]]:
    if not PLACES:
        path = str(Path(__file__).resolve().parent.parent)
        sys.path.insert(0, path)
        from pages import captured

        sys.path.remove(path)
        PLACES.update(captured.PLACES)
    return PLACES


# --- where the tables are asked -------------------------------------------------------------------


class Attributes(dict[str, Any]):
    """A dialect's attributes of a tensor."""

    library = ""

    def __getitem__(self, name: str) -> Any:
        note(self.library, "attribute", name)
        return super().__getitem__(name)


class Refused(dict[Any, str]):
    """A dialect's refused functions."""

    library = ""

    def get(self, function: Any, default: Any = None) -> Any:
        found = super().get(function, default)
        if found is not default:
            note(self.library, "refused", function)
        return found


class Trees(frozenset[Any]):
    """A dialect's functions of nested structures."""

    library = ""

    def __contains__(self, function: Any) -> bool:
        is_one = super().__contains__(function)
        if is_one:
            note(self.library, "tree", function)
        return is_one


FIELDS: dict[str, type] = {"attributes": Attributes, "refused": Refused, "trees": Trees}


def in_calls(module: Any) -> None:
    """Count functions, at the one place where a call of one is looked up."""
    find = module._find_handler

    def find_handler(dialect: str, function: Any, name: str) -> Any:
        handler = find(dialect, function, name)
        known = module.find_dialect(dialect)
        if known is None:
            return handler
        if handler is None:
            note(dialect, "missing", function)
        elif known.names.aliases.get(function) is not None:
            note(dialect, "function", function)
        else:
            for key, value in known.names.aliases.items():
                if value is handler:
                    note(dialect, "function", key)
                    break
            else:
                note(dialect, "private", function)
        return handler

    module._find_handler = find_handler


def in_dialect(module: Any) -> None:
    """Count the names of a dialect that are no functions."""
    register = module.register_dialect

    def register_dialect(name: str, dialect: Any) -> None:
        for field, kind in FIELDS.items():
            rows = kind(getattr(dialect.names, field))
            rows.library = name
            object.__setattr__(dialect.names, field, rows)
        register(name, dialect)

    module.register_dialect = register_dialect


def in_attributes(module: Any) -> None:
    """Count methods, and attributes that no symbol answers."""
    find_row, bound = module.find_row, module.BoundMethod.__init__

    def find_counted(name: str, dialect: Any, kind: Any) -> Any:
        row = find_row(name, dialect, kind)
        if not name.startswith("_") and (row is None or row.kind in ("refused", "absent")):
            note(name_of_dialect(dialect), "missing", f"x.{name}")
        return row

    def __init__(self: Any, method: Any, value: Any, name: str) -> None:
        bound(self, method, value, name)
        from multigrad.engine.capture.values import methods

        library = value.trace.reading.dialect
        dialect = None if len(value.trace.reading.libraries) > 1 else module.find_dialect(library)
        own = {} if dialect is None else dialect.names.methods
        plain = name.removesuffix("_")
        rows = ((library, own, name), ("shared", methods.METHODS, name))
        rows += (("shared", methods.IN_PLACE, name), (library, own, plain))
        rows += (("shared", methods.METHODS, plain), (library, {name: method.record}, name))
        room, row = next((room, row) for room, table, row in rows if table.get(row) is not None)
        note(room, "method", row)
        if library:
            note(library, "called", row)

    module.find_row = find_counted
    module.BoundMethod.__init__ = __init__


def name_of_dialect(dialect: Any) -> str:
    """Return the import name of a dialect, "" for none."""
    from multigrad.engine.capture.dialect import registered_dialects

    return next((name for name, each in registered_dialects().items() if each is dialect), "")


def in_substitution(module: Any) -> None:
    """Count functions that something stands in for: where code gets that."""
    make = module._Substitution.maker

    def maker(self: Any, value: Any, name: str = "") -> Any:
        made = make(self, value, name)
        kind = "hidden" if id(value) in self.index.functions else "refused"
        if made is None or (kind == "refused" and id(value) not in self.index.refused):
            return made

        def counted() -> Any:
            for library in owners(self.index, kind, value):
                note(library, kind, value)
            return made()

        return counted

    module._Substitution.maker = maker


def owners(index: Any, kind: str, function: Any) -> Iterable[str]:
    """Yield the dialects whose stand-in or refused function it is; the room where it is shared."""
    if kind == "refused":
        known = [
            n for n, d in index.dialects.items() if dict.get(d.names.refused, function) is not None
        ]
    else:
        known = [
            name for name, dialect in index.dialects.items() if function in dialect.names.hidden
        ]
    room = (getattr(function, "__module__", None) or "").partition(".")[0]
    yield from known or [room if room in index.dialects else "shared"]


PATCHES: dict[str, Callable[[Any], None]] = {
    "multigrad.engine.capture.dialect": in_dialect,
    "multigrad.engine.capture.foreign_calls": in_calls,
    "multigrad.engine.capture.values.attributes": in_attributes,
    "multigrad.engine.capture.copies.substitute": in_substitution,
}


class Patching(importlib.abc.MetaPathFinder):
    """Replaces what counts in a module once it is imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in PATCHES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                PATCHES[name](module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Count in this process, if it is told where to."""
    if FOLDER in os.environ:
        sys.meta_path.insert(0, Patching())
