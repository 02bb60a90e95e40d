"""Public names that stand in a backend: what needs a framework is imported when first asked for."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from ...graph.support.namespace import Getter, Lister, namespace
from ..finding.discovery import load_backend


def served_by(backend: str, room: str, module: str, names: Iterable[str]) -> tuple[Getter, Lister]:
    """Return `__getattr__` and `__dir__` of a module whose public names are a backend's.

    Args:
        room: the module of the backend that has them.
        module: the name of the module that is asked.
    """

    def load(name: str) -> Any:
        load_backend(backend)  # says what to install where the framework is missing
        return getattr(import_module(room), name)

    return namespace(module, names, load)
