"""All families of ops, in the order in which the op table is listed."""

from __future__ import annotations

from types import ModuleType

from ...core.ops import CORE_FAMILIES, activations, arithmetic, reductions, shapes
from . import (
    collectives,
    draws,
    elementary,
    factors,
    indexing,
    indices,
    linalg,
    loops,
    ordering,
    orders,
    products,
    units,
)

# By a family of the core, those that follow it.
AFTER: dict[ModuleType, tuple[ModuleType, ...]] = {
    arithmetic: (elementary,),
    activations: (units,),
    reductions: (products, linalg, factors),
    shapes: (orders, indexing, ordering, indices, draws, collectives, loops),
}
# Backends compute these in float32 for 16-bit floats, and round once.
IN_FLOAT32 = (
    *(ordering.LOGCUMSUMEXP, ordering.DISCOUNTED_SUM, linalg.CHOLESKY, linalg.TRIANGULAR_SOLVE),
    *(linalg.SOLVE, linalg.INV, linalg.PINV, linalg.DET, linalg.LOGABSDET, linalg.SIGNDET),
    *(linalg.EXPM, factors.LU, factors.SVD, factors.SVDVALS, factors.EIGH, factors.EIGVALSH),
    *(factors.QR, factors.FFT, elementary.NDTRI, elementary.DIGAMMA, elementary.POLYGAMMA),
    *(elementary.I0E, elementary.I1E),
)


def list_families() -> tuple[ModuleType, ...]:
    """Return those of the core among the others."""
    return tuple([each for core in CORE_FAMILIES for each in (core, *AFTER.get(core, ()))])
