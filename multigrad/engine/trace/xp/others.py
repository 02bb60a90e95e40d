"""The modules of `xg.xp` beside those of the core."""

from __future__ import annotations

from types import ModuleType

from . import draws, elements, linalg, shapes, shards, signals


def other_modules() -> tuple[ModuleType, ...]:
    return draws, elements, linalg, shapes, shards, signals
