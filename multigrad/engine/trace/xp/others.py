"""The modules of `xg.xp` beside those of the core: draws, matrices, shapes, shards, signals."""

from __future__ import annotations

from types import ModuleType

from . import draws, linalg, shapes, shards, signals


def other_modules() -> tuple[ModuleType, ...]:
    return draws, linalg, shapes, shards, signals
