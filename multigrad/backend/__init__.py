"""The public module for a backend's author, who need import nothing else of multigrad.

`Backend` and its groups say what a framework offers; `ops` are the rows of the op table; the rest
is what the functions in the groups are given, or return. `docs/backends.md` walks through one.
The imports of `__init__.pyi`, which type checkers read, say which file has each name. No more is
loaded than an author's code names.

May import the rooms up to `graph`; docs/architecture.md has their order.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..core.support.lazy_modules import missing_name_error, read_stub
from ..core.support.threads import load_module

# Modules that an author asks for by name. Some are of rooms above, which this one may not import.
MODULES = {
    "compilers": "multigrad.engine.rules.jit",
    "dialects": "multigrad.engine.capture.dialects.dialect_api",
    "importers": "multigrad.engine.functions.code_recipes",
    "ops": "multigrad.core.ops",
    "random": "multigrad.engine.random",
}


FILES = {
    name: f"multigrad.{module}"
    for name, module in read_stub(__spec__).items()
    if name not in MODULES
}
__all__ = ["ops", "random", *sorted(FILES)]  # noqa: PLE0604  # pyright: ignore


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return import_module(MODULES[name])
    if name not in FILES:
        raise missing_name_error(__name__, name, sorted(FILES))
    # Later look-ups find the value in the module.
    value = globals()[name] = getattr(load_module(FILES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
