"""How our modules are imported, and what they answer for their public names.

These alone are listed, and one that is misspelled is an error that names the right one. A public
module may have another name than that of its room: `multigrad.wrappers` is
`multigrad.compat.wrappers`, one module, also in `import` statements and with `python -m`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from ...errors import suggest
from .threads import make_lock

Getter = Callable[[str], Any]
Lister = Callable[[], list[str]]


def namespace(
    module: str, names: Iterable[str], load: Callable[[str], Any] | None = None
) -> tuple[Getter, Lister]:
    """Return `__getattr__` and `__dir__` of a module.

    Args:
        load: gives the value of a public name that the module does not hold yet.
    """
    known = sorted(names)

    def get_name(name: str) -> Any:
        if load is not None and name in known:
            return load(name)
        raise missing(module, name, known)

    return get_name, known.copy


def later(package: str, names: Mapping[str, tuple[str, ...]]) -> tuple[Getter, Lister]:
    """Return `__getattr__` and `__dir__` of a package whose files load when a name of theirs is
    first asked for: `names` by file.
    """
    files = {name: file for file, known in names.items() for name in known}

    def load(name: str) -> Any:
        value = getattr(import_module(f"{package}.{files[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return namespace(package, files, load)


def missing(module: str, name: str, known: Iterable[str]) -> AttributeError:
    # Tools ask for names with underscores, by the dozen.
    hint = "" if name.startswith("_") else suggest(name, known)
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")


def whole(name: str) -> ModuleType | None:
    """Return a module whose import has ended; None: it has not begun, or another thread is still in
    it, and the module lacks some of its names.
    """
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


class _Finder(MetaPathFinder, InspectLoader):
    """Finds a room by its public name, and what is within it likewise."""

    def __init__(self, package: str, rooms: Mapping[str, str]) -> None:
        self.package, self.rooms = package, rooms

    def _room_of(self, fullname: str) -> str | None:
        """Return the full name of the room; None: the name is not of a public module."""
        package, _, rest = fullname.partition(".")
        name, *inner = rest.split(".")
        room = self.rooms.get(name, name) if package == self.package else name
        return None if room == name else ".".join((package, room, *inner))

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        room = self._room_of(fullname)
        found = None if room is None else find_spec(room)
        if found is None:
            return None
        spec = ModuleSpec(fullname, self, origin=room)
        spec.submodule_search_locations = found.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(spec.origin or "")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:  # that of the public name, put there by the import system
            module.__spec__ = module.__spec__.loader_state

    def get_source(self, fullname: str) -> str | None:
        found = find_spec(self._room_of(fullname) or fullname)
        if found is None or not isinstance(found.loader, InspectLoader):
            return None
        return found.loader.get_source(found.name)


def serve(package: str, rooms: Mapping[str, str]) -> None:
    """Let the public modules of a package be imported from now on."""
    sys.meta_path.insert(0, _Finder(package, rooms))


_lock = make_lock()
_pausing: list[bool] = []  # one for each who imports; the first: whether it was on before


@contextmanager
def uncollected() -> Iterator[None]:
    """Let Python's garbage collector rest, and go on as before when the last has left; all that was
    made meanwhile is as old as if the collector had kept it for long.
    """
    if gc.isenabled():
        gc.collect(1)  # now, as garbage of others would age, too
    with _lock:
        _pausing.append(gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            was_on = _pausing[0]
            _pausing.pop()
            if was_on and not _pausing:
                if gc.get_freeze_count() == 0:  # all into the oldest generation
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()
