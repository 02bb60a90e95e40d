"""All families of ops, in the order in which the op table is listed."""

from __future__ import annotations

from types import ModuleType

from ...core.ops import (
    activations,
    arithmetic,
    draws,
    logic,
    reductions,
    selection,
    shapes,
    special,
    structure,
    transcendental,
)
from . import collectives, factors, indexing, indices, linalg, loops, ordering, orders, products


def list_families() -> tuple[ModuleType, ...]:
    """Return those of the core among the others."""
    return (
        arithmetic, transcendental, special, activations, logic, selection, reductions, products,
        linalg, factors, shapes, orders, indexing, ordering, indices, draws, collectives, loops,
        structure,
    )  # fmt: skip
