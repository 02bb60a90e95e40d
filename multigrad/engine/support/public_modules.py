"""Public modules: what of them is listed, by which names they are imported, and by which name one
holds a value.

Only public names are listed, and a misspelled one is an error that names the right one. A public
module may have another name than its room, an alias: `multigrad.wrappers` is
`multigrad.compat.wrappers`, one module, also in `import` statements and with `python -m`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from operator import attrgetter
from types import ModuleType
from typing import Any

from ...core.support.lazy_modules import imported_module, missing_name_error
from ...errors import closest

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


def hint_at(module: str, name: str, known: Iterable[str]) -> str:
    known = list(known)
    # Public names of public modules within may be meant, too: "composites.epsilon_gamma_box".
    parts = {part: getattr(imported_module(f"{module}.{part}"), "__all__", ()) for part in known}
    places = {"rule": "register"} if "register" in known else {}
    places |= {each: f"{part}.{each}" for part in parts for each in parts[part]}
    places |= {each: each for each in known}
    plain = {each.replace("_", "").lower(): each for each in places}
    word = name if name in places else plain.get(name.replace("_", "").lower())
    meant = places.get(word or closest(name, places) or "")
    return f"; did you mean {meant!r}?" if meant else ""


def find_room(fullname: str, rooms: tuple[str, ...], inner: list[str]) -> ModuleSpec | None:
    """Return the spec of the first of these rooms that has the module, under its public name."""
    package = fullname.partition(".")[0]
    # Packages of 1.0.0 are files of their rooms.
    paths = [(room, *path) for path in (inner, inner[-1:]) for room in rooms]
    places = [".".join((package, *filter(None, path))) for path in paths]
    for place in places:
        try:
            room_spec = find_spec(place)
        except ModuleNotFoundError:  # nor is its package there
            continue
        if room_spec is not None:
            loader: Any = AliasLoader(room_spec)
            spec = ModuleSpec(fullname, loader, origin=place)
            spec.submodule_search_locations = room_spec.submodule_search_locations
            return spec
    return None


class AliasLoader:
    """Loads a room by a public name, so that both names give one object.

    The import system writes the alias's spec onto the room's module; `loader_state` carries the
    room's own spec, which `exec_module` restores.
    """

    def __init__(self, room: ModuleSpec) -> None:
        self.room = room

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self.room.name)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:  # the alias's
            module.__spec__ = module.__spec__.loader_state

    def get_source(self, fullname: str) -> str | None:
        loader: Any = self.room.loader
        return loader.get_source(self.room.name)

    def get_code(self, fullname: str) -> Any:
        loader: Any = self.room.loader
        return loader.get_code(self.room.name)


def name_in_module(value: Any, module: str | None = None) -> str:
    """Return the name by which a module, else its own, holds a value; "" if it holds it by none.

    Code that makes a value cannot know the name that the value is then given.
    """
    holder = sys.modules.get(module or getattr(value, "__module__", None) or "")
    names = (getattr(value, "__qualname__", ""), *getattr(holder, "__dict__", {}))
    for name in names:
        with suppress(AttributeError):
            if attrgetter(name)(holder) is value:
                return name
    return ""


def is_of_session(module: str) -> bool:
    """Return whether a module is an interactive session or a notebook, which have no file."""
    return module == "__main__" and not hasattr(sys.modules[module], "__file__")
