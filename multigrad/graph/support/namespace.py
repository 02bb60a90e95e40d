"""What a module answers for its public names: they alone are listed, and one that is misspelled is
an error that names the right one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from ...errors import suggest

Getter = Callable[[str], Any]
Lister = Callable[[], list[str]]


def namespace(
    module: str, names: Iterable[str], load: Callable[[str], Any] | None = None
) -> tuple[Getter, Lister]:
    """Return `__getattr__` and `__dir__` of a module.

    Args:
        module: its name.
        names: its public names.
        load: gives the value of a public name that the module does not hold yet.
    """
    known = sorted(names)

    def get_name(name: str) -> Any:
        if load is not None and name in known:
            return load(name)
        raise missing(module, name, known)

    def list_names() -> list[str]:
        return list(known)

    return get_name, list_names


def later(package: str, names: Mapping[str, tuple[str, ...]]) -> tuple[Getter, Lister]:
    """Return `__getattr__` and `__dir__` of a package whose files load when a name of theirs is
    first asked for.

    Args:
        package: its name.
        names: what is asked of each file.
    """
    files = {name: file for file, known in names.items() for name in known}

    def load(name: str) -> Any:
        value = getattr(import_module(f"{package}.{files[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return namespace(package, files, load)


def missing(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """Return the error for a name that a module does not have."""
    # Tools ask for names with underscores, by the dozen.
    hint = "" if name.startswith("_") else suggest(name, known)
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")
