"""Functions of the core that a storey above provides.

The core has the plain answer of each, and calls it by its own name. A storey above registers a
place as text (`multigrad/engine/__init__.py`), so that nothing of it is loaded before it is needed:

    @provided
    def find_updates(symbols): return ()    the answer where only the core is installed
    provide("multigrad", {"core.module": {"engine.module": "find_updates"}})
    find_updates(symbols)                   runs the engine's
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

from .threads import load_module

NEEDS_ENGINE = (
    "needs multigrad's engine, which this installation leaves out: install multigrad-rules whole"
)
P = ParamSpec("P")
R = TypeVar("R")
# The places that provide functions, by the places of these, all as module:name. Written as packages
# are imported, before any of the functions is called; never emptied.
providers: dict[str, str] = {}


def provide(package: str, table: Mapping[str, Mapping[str, str]]) -> None:
    """Register what provides functions of a package's core, under their own names.

    Args:
        package: in which the modules of the table are.
        table: the core's modules; for each the modules that provide functions of it, with the names
            of these, between spaces.
    """
    for home, rows in table.items():
        for provider, names in rows.items():
            for name in names.split():
                providers[f"{package}.{home}:{name}"] = f"{package}.{provider}:{name}"


def load_engine(package: str) -> None:
    """Load what registers with a package's core, where it is installed: the core does without."""
    if find_spec(f"{package}.engine") is not None:
        import_module(f"{package}.engine")


def provided(plain: Callable[P, R]) -> Callable[P, R]:
    """Return a function that runs what provides it; without that, the plain one."""
    place = f"{plain.__module__}:{plain.__name__}"
    found: Any = None

    @functools.wraps(plain)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal found
        if found is None:  # once: compilers that trace Python can trace no import
            module, _, name = providers.get(place, "").partition(":")
            found = getattr(load_module(module), name) if module else plain
        return found(*args, **kwargs)

    return call
