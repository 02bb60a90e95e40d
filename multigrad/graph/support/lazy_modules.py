"""Lazy modules: public names that load their file on first use, public names of rooms.

Only public names are listed, and a misspelled one is an error that names the right one. A public
module may have another name than its room: `multigrad.wrappers` is `multigrad.compat.wrappers`, one
module, also in `import` statements and with `python -m`.
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
    """Return `__getattr__` and `__dir__` of a package whose files load on first use.

    `names` has the public names in each file.
    """
    files = {name: file for file, known in names.items() for name in known}

    def load(name: str) -> Any:
        value = getattr(import_module(f"{package}.{files[name]}"), name)
        # Later look-ups find the value in the module.
        setattr(sys.modules[package], name, value)
        return value

    return namespace(package, files, load)


def missing(module: str, name: str, known: Iterable[str]) -> AttributeError:
    # Tools look up names with underscores by the dozen, and need no hint.
    hint = "" if name.startswith("_") else suggest(name, known)
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")


def whole(name: str) -> ModuleType | None:
    """Return a module that is imported completely, else None."""
    module = sys.modules.get(name)
    # Another thread may still be importing it, so that names are missing.
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


class _Finder(MetaPathFinder, InspectLoader):
    """Finds a room, and the modules in it, by a public name."""

    def __init__(self, package: str, rooms: Mapping[str, str]) -> None:
        self.package, self.rooms = package, rooms

    def _room_of(self, fullname: str) -> str | None:
        package, _, rest = fullname.partition(".")
        name, *inner = rest.split(".")
        room = self.rooms.get(name, name) if package == self.package else name
        # None: the name is not of a public module.
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
        # The room's own module, so that both names give one object.
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
    """Make the public modules of a package importable."""
    sys.meta_path.insert(0, _Finder(package, rooms))


_lock = make_lock()
_pausing: list[bool] = []  # one for each who imports; the first: whether it was on before


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the garbage collector, until the last such block ends.

    All that is made meanwhile is then as old as if the collector had kept it for long.
    """
    if gc.isenabled():
        gc.collect(1)  # now, as garbage of others would age, too
    # Several threads may import at once; the last to leave restores what the first found.
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
