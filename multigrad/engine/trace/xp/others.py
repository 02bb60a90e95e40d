"""The modules of `xg.xp` beside those of the core."""

from __future__ import annotations

from types import ModuleType

from . import draws, elements, linalg, shapes, shards, signals, transposes


def other_modules(public: bool) -> tuple[ModuleType, ...]:
    modules = draws, elements, linalg, shapes, shards, signals
    return modules if public else (*modules, transposes)
