"""Functions of `xg.xp` that no elementwise rule needs."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

MODULES = ("draws", "elements", "linalg", "shapes", "shards", "signals")


def other_modules(public: bool) -> tuple[ModuleType, ...]:
    names = MODULES if public else (*MODULES, "transposes")
    return tuple([import_module(f"{__name__}.{name}") for name in names])
