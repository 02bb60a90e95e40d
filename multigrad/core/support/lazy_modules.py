"""What loads by need: functions of the core that a storey above provides, names that load their
file on first use, and public names of rooms.

The core has the plain answer of each provided function, and calls it by its own name. A storey
above registers a place as text (`multigrad/engine/__init__.py`), so that nothing of it is loaded
before it is needed:

    @provided
    def find_updates(symbols): return ()    the answer where only the core is installed
    provide("multigrad", {"core.module": {"engine.module": "find_updates"}})
    find_updates(symbols)                   runs the engine's
    write_loop = of_engine(__name__, "write_loop", "a loop")    of no answer, but what to install

Of lazy modules only public names are listed, and a misspelled one is an error that names the right
one. A public module may have another name than its room, an alias: `multigrad.wrappers` is
`multigrad.compat.wrappers`, one module, also in `import` statements and with `python -m`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, resolve_name
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from ...errors import UnsupportedOp, closest
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


# --- lazy modules and names -----------------------------------------------------------------------
Getter = Callable[[str], Any]
Lister = Callable[[], list[str]]


def module_hooks(
    module: str, names: Iterable[str], load: Callable[[str], Any] | None = None
) -> tuple[Getter, Lister]:
    """Return `__getattr__` and `__dir__` of a module.

    Args:
        load: gives the value of a public name that the module does not hold yet.
    """
    public_names = sorted(names)

    def get_name(name: str) -> Any:
        if load is not None and name in public_names:
            return load(name)
        raise missing_name_error(module, name, public_names)

    return get_name, public_names.copy


def lazy_names(package: str, names: Mapping[str, tuple[str, ...]]) -> tuple[Getter, Lister]:
    """Return `__getattr__` and `__dir__` of a package whose files load on first use.

    `names` has the public names in each file of the package; after dots, of another one.
    """
    files = {name: file for file, file_names in names.items() for name in file_names}

    def load(name: str) -> Any:
        value = getattr(load_module(resolve_name(f".{files[name]}", package)), name)
        # Later look-ups find the value in the module.
        setattr(sys.modules[package], name, value)
        return value

    return module_hooks(package, files, load)


def missing_name_error(module: str, name: str, known: Iterable[str]) -> AttributeError:
    # Tools look up names with underscores by the dozen, and need no hint.
    if name.startswith("_"):
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    known = list(known)
    # Public names of public modules within may be meant, too: "composites.epsilon_gamma_box".
    parts = {part: getattr(imported_module(f"{module}.{part}"), "__all__", ()) for part in known}
    places = {"rule": "register"} if "register" in known else {}
    places |= {each: f"{part}.{each}" for part in parts for each in parts[part]}
    places |= {each: each for each in known}
    plain = {each.replace("_", "").lower(): each for each in places}
    word = name if name in places else plain.get(name.replace("_", "").lower())
    meant = places.get(word or closest(name, places) or "")
    hint = f"; did you mean {meant!r}?" if meant else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")


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
    """Finds a room, and the modules in it, by a public name.

    The import system writes the alias's spec onto the room's module; `loader_state` carries the
    room's own spec, which `exec_module` restores.
    """

    def __init__(self, package: str, rooms: Mapping[str, str | tuple[str, ...]]) -> None:
        self.package, self.rooms = package, rooms

    def _room_of(self, fullname: str) -> str | None:
        package, _, tail = fullname.partition(".")
        name, *inner = tail.split(".")
        rooms = self.rooms.get(name, name) if package == self.package else name
        if rooms == name:  # not of a public module
            return None
        choices = (rooms,) if isinstance(rooms, str) else rooms
        if choices[0] == name:  # a package, of which modules have moved
            choices = choices[1:] if inner else ()
        # Packages of 1.0.0 are files of their rooms.
        paths = [(room, *path) for path in (inner, inner[-1:]) for room in choices]
        places = [".".join((package, *filter(None, path))) for path in paths]
        return next((place for place in places if _is_there(place)), None)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        room = self._room_of(fullname)
        room_spec = None if room is None else find_spec(room)
        if room_spec is None:
            return None
        loader: Any = self
        spec = ModuleSpec(fullname, loader, origin=room)
        spec.submodule_search_locations = room_spec.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        # The room's own module, so that both names give one object.
        module = import_module(spec.origin or "")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:  # the alias's
            module.__spec__ = module.__spec__.loader_state

    def get_source(self, fullname: str) -> str | None:
        return self._loader_of(fullname).get_source(self._room_of(fullname) or fullname)

    def get_code(self, fullname: str) -> Any:
        return self._loader_of(fullname).get_code(self._room_of(fullname) or fullname)

    def _loader_of(self, fullname: str) -> Any:
        spec = find_spec(self._room_of(fullname) or fullname)
        assert spec is not None  # it was found by this name
        return spec.loader


def _is_there(place: str) -> bool:
    try:
        return find_spec(place) is not None
    except ModuleNotFoundError:  # nor is its package
        return False


def install_aliases(package: str, rooms: Mapping[str, str | tuple[str, ...]]) -> None:
    """Make the public modules of a package importable, also by `python -m`; of several rooms for a
    name, the first that has the module is meant.

    See tests/graph/support/test_lazy_modules.py.
    """
    sys.meta_path.insert(0, AliasFinder(package, rooms))
