"""Which source files belong to a library, and which to the user.

Substitution copies the user's helpers and leaves libraries alone. A library is what an installer
put into its folder, or a known array library with its dependencies, wherever they are.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator
from importlib import metadata

from ...backend.installed import required_by

INSTALLED = frozenset(("site-packages", "dist-packages"))  # installers' folders
STANDARD = os.path.dirname(os.__file__)
# The packages that count as libraries. One frozenset, replaced as a whole: it is a key of the
# caches below, so that a new library makes new entries.
_known = [frozenset[str]()]


def add_library(name: str) -> None:
    """Count a package as a library, wherever it is."""
    _known[0] |= {name}


def is_library_file(file: str | None) -> bool:
    """Return whether a source file is not the user's."""
    return file is None or file.startswith("<") or _is_installed(file, _known[0])


@functools.lru_cache(maxsize=4096)
def _is_installed(file: str, known: frozenset[str]) -> bool:
    if not INSTALLED.isdisjoint(file.split(os.sep)):
        return True
    return file.startswith((f"{STANDARD}{os.sep}", *find_folders(known)))


@functools.lru_cache(maxsize=16)
def find_folders(names: frozenset[str]) -> tuple[str, ...]:
    """Return the folders of packages and of their dependencies, each ending in a separator."""
    packages = {*names, *(needed for name in names for needed in _requirements(name))}
    folders = {folder for name in packages for folder in package_folders(name)}
    # pip's `--target` folder holds metadata of the packages in it, so all in it is installed.
    targets = {os.path.dirname(folder) for name in names for folder in package_folders(name)}
    folders |= {t for t in targets if any(n.endswith(".dist-info") for n in _listed(t))}
    return tuple(f"{folder}{os.sep}" for folder in sorted(folders))


def package_folders(name: str) -> Iterator[str]:
    """Yield the folders of an imported package."""
    module = sys.modules.get(name)
    for path in getattr(module, "__path__", None) or ():
        yield os.path.abspath(path)


def in_package(file: str, name: str) -> bool:
    """Return whether a source file is part of an imported package."""
    own = getattr(sys.modules.get(name), "__file__", None)
    return file == own or any(file.startswith(f"{f}{os.sep}") for f in package_folders(name))


def _requirements(name: str) -> Iterator[str]:
    # The import names of a distribution's dependencies, as far as they equal the distributions'
    # names.
    try:
        rows = required_by(name)
    except metadata.PackageNotFoundError:
        return
    for row in rows:
        found = re.match(r"[\w.-]+", row)
        if found is not None and "extra ==" not in row:
            yield found[0].replace("-", "_")


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
