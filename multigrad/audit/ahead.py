"""What is done where code that is audited imports a library that needs help: before and after.

A helper is a module of a backend's package with `prepare` (before the import), `mend` (after it),
`is_interpreted` (whether it changes where code runs), `NAME` of that place, and `NOTE`, which says
what is different there.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from ..backend.finding.installed import extra_line

HELPERS = {"triton": "multigrad_torch.compat.triton"}
_used: list[Any] = []


class Ahead(MetaPathFinder):
    """Sees the first import of a library, and lets its helper be there before."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in HELPERS:
            return None
        sys.meta_path.remove(self)
        try:
            helper = _load(HELPERS[name])
            spec = importlib.util.find_spec(name)
        except ImportError:  # its framework is not installed
            return None
        finally:
            sys.meta_path.insert(0, self)
        if helper is None or spec is None or spec.loader is None:
            return None
        helper.prepare()
        spec.loader = Helped(spec.loader, helper)
        return spec


class Helped(Loader):
    """The loader of a library, of which others may be in use, and what comes after it."""

    def __init__(self, loader: Loader, helper: Any) -> None:
        self.loader, self.helper = loader, helper

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.helper.mend()
        _used.append(self.helper)


def _load(name: str) -> Any:
    """Return a module without its package, which may import the library itself."""
    package, *rest = name.split(".")
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        return None
    file = Path(found.submodule_search_locations[0], *rest).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def help_imports() -> None:
    """Help the libraries of HELPERS that are imported from now on."""
    if not any(isinstance(each, Ahead) for each in sys.meta_path):
        sys.meta_path.insert(0, Ahead())


def advise(error: BaseException | None) -> str:
    """Return what to install where an import failed for want of one of these libraries."""
    name = getattr(error, "name", None)
    if not isinstance(error, ModuleNotFoundError) or name not in HELPERS:
        return ""
    return f": {extra_line(name)}"


def read_notes() -> list[str]:
    """Return what is to be said of where code runs."""
    return [helper.NOTE for helper in _used if helper.is_interpreted()]


def place_of(home: str) -> str:
    """Return a framework's name, and where its kernels run if that is not a GPU."""
    places = [helper.NAME for helper in _used if helper.is_interpreted()]
    return " in ".join([home, *places]) if home else home
