"""Modules that not every installation has, and modules of packages that are not imported."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from ...core.backend.discovery import OWN
from ...core.support.installed import install_line, requirements_of
from ...errors import BackendNotFound


def extra_line(extra: str) -> str:
    return install_line(extra, OWN, requirements_of(extra, OWN))


def import_extra(module: str, extra: str, who_needs_it: str) -> ModuleType:
    """Return a module that an extra brings.

    Raises:
        BackendNotFound: it cannot be imported; the message gives the command that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise BackendNotFound(f"{who_needs_it}; type: {extra_line(extra)}") from error


def import_conformance(part: str, what: str) -> ModuleType:
    """Return a module of `multigrad_conformance`, which is in tests/conformance of a clone.

    Raises:
        BackendNotFound: it is not installed, and this is no clone; `what` is missing.
    """
    folder = Path(__file__).parents[3] / "tests" / "conformance"
    if (folder / "multigrad_conformance").is_dir() and str(folder) not in sys.path:
        sys.path.append(str(folder))
    whence = f"{what} are in multigrad-conformance"
    return import_extra(f"multigrad_conformance.{part}", "conformance", whence)


def load_alone(name: str) -> Any:
    """Return a module of a package, without an import of the package; None if there is none."""
    package, *parts = name.split(".")
    parent = find_spec(package)
    if parent is None or not parent.submodule_search_locations:
        return None
    file = Path(parent.submodule_search_locations[0], *parts).with_suffix(".py")
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        return None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
