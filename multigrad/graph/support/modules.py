"""Public modules that are imported under another name than that of their room.

`multigrad.wrappers` is `multigrad.compat.wrappers`: one module, also in `import` statements and
with `python -m`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


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
