"""All families of ops, in the order in which the op table is listed."""

from __future__ import annotations

from types import ModuleType

from ...core.ops import CORE_FAMILIES, draws, reductions, shapes
from . import collectives, factors, indexing, indices, linalg, loops, ordering, orders, products

# By a family of the core, those that follow it.
AFTER: dict[ModuleType, tuple[ModuleType, ...]] = {
    reductions: (products, linalg, factors),
    shapes: (orders, indexing, ordering, indices),
    draws: (collectives, loops),
}


def list_families() -> tuple[ModuleType, ...]:
    """Return those of the core among the others."""
    return tuple([each for core in CORE_FAMILIES for each in (core, *AFTER.get(core, ()))])
