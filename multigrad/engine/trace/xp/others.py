"""The modules of `xg.xp` beside those of the core: matrices, shapes, shards, signals."""

from __future__ import annotations

from types import ModuleType

from . import linalg, shapes, shards, signals


def other_modules() -> tuple[ModuleType, ...]:
    return linalg, shapes, shards, signals
