"""What loads by need: functions of the core that a storey above provides, and functions whose
module loads as they are called.

The core has the plain answer of each provided function, and calls it by its own name. A storey
above registers a place as text (`multigrad/engine/__init__.py`), so that nothing of it is loaded
before it is needed:

    @provided
    def find_updates(symbols): return ()    the answer where only the core is installed
    provide("multigrad", {"core.module": {"engine.module": "find_updates"}})
    find_updates(symbols)                   runs the engine's
    write_loop = of_engine(__name__, "write_loop", "a loop")    of no answer, but what to install
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from ...errors import UnsupportedOp, suggest
from .threads import load_module

# --- functions that a storey above provides -------------------------------------------------------
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
    return functools.wraps(plain)(_provided_at(place, plain))


def of_engine(
    module: str, name: str, what: str, error: type[Exception] = UnsupportedOp
) -> Callable[..., Any]:
    """Return a function that a storey above provides under its name, and that is an error without.

    Args:
        what: needs it, for the message.
    """

    def plain(*args: Any, **kwargs: Any) -> Any:
        raise error(f"{what} {NEEDS_ENGINE}")

    return _provided_at(f"{module}:{name}", plain)


def _provided_at(place: str, plain: Callable[P, R]) -> Callable[P, R]:
    return loaded_once(lambda: late_value(providers[place])() if place in providers else plain)


def loaded_once(load: Callable[[], Callable[P, R]]) -> Callable[P, R]:
    """Return a function that runs the one that `load` returns at the first call."""
    function: Callable[P, R] | None = None

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal function
        if function is None:  # once: compilers that trace Python can trace no import
            function = load()
        return function(*args, **kwargs)

    return call


# --- names and modules that load on first use -----------------------------------------------------
def read_stub(spec: ModuleSpec | None) -> dict[str, str]:
    """Return the module within its package of each name that a stub beside a package's file imports
    from one: what type checkers are told is what loads.

        from .core.rules.rule import Rule as Rule       {"Rule": "core.rules.rule"}
    """
    assert spec is not None and spec.origin is not None
    loader: Any = spec.loader
    text = loader.get_data(f"{spec.origin.rpartition('.')[0]}.pyi").decode()
    return {
        name: module for module, names in _IMPORT.findall(text) for name in _PUBLIC.findall(names)
    }


_IMPORT = re.compile(r"^from \.+(\w+(?:\.\w+)*) import (\([^)]*\)|.*)", re.MULTILINE)
_PUBLIC = re.compile(r"\w+(?= as )")


def missing_name_error(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """Return the error for a name that a module lacks."""
    # Python itself asks for `__path__`, and tools for names with underscores, which need no hint.
    hint = "" if name.startswith("_") else hint_at(module, name, known)
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")


@provided
def hint_at(module: str, name: str, known: Iterable[str]) -> str:
    """Return a hint at the public name that was perhaps meant, after a semicolon."""
    return suggest(name, known)


def imported_module(name: str) -> ModuleType | None:
    """Return a module that is imported completely, else None."""
    module = sys.modules.get(name)
    # Another thread may still be importing it, so that names are missing.
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def late_function(place: str) -> Callable[..., Any]:
    """Return the function at module:name, whose module is imported when it is called.

    Its attribute `load` is a function that gives the one at that place.
    """
    load = late_value(place)
    call = loaded_once(load)
    call.load = load  # type: ignore[attr-defined]
    return call


def loaded(function: Any) -> Any:
    """Return the function that a late one stands for; any other, or None, as it is."""
    return getattr(function, "load", lambda: function)()


def late_value(place: str) -> Callable[[], Any]:
    """Return a function that gives the value at module:name, importing the module when called."""
    module, _, name = place.partition(":")

    def load() -> Any:
        try:
            return getattr(load_module(module), name)
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):
                raise
            raise UnsupportedOp(f"{place} {NEEDS_ENGINE}") from error

    return load


class AliasFinder:  # of no base: `importlib.abc` takes longer to load than all of ours here
    """Finds rooms of a package, and the modules in them, by public names."""

    def __init__(self, package: str, rooms: Mapping[str, str | tuple[str, ...]]) -> None:
        self.package, self.rooms = package, rooms

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        package, _, tail = fullname.partition(".")
        name, *inner = tail.split(".")
        rooms = self.rooms.get(name, name) if package == self.package else name
        choices = (rooms,) if isinstance(rooms, str) else rooms
        if choices[0] == name:  # a package, of which modules may have moved
            choices = choices[1:] if inner else ()
        return find_room(fullname, choices, inner) if choices else None


@provided
def find_room(fullname: str, rooms: tuple[str, ...], inner: list[str]) -> ModuleSpec | None:
    """Return the spec of the first of these rooms that has the module; the core has no aliases."""
    return None


def install_aliases(package: str, rooms: Mapping[str, str | tuple[str, ...]]) -> None:
    """Make the public modules of a package importable, also by `python -m`; of several rooms for a
    name, the first that has the module is meant.

    See tests/graph/support/test_lazy_modules.py.
    """
    sys.meta_path.insert(0, AliasFinder(package, rooms))
