"""Tensors that do not lie in memory as fresh ones do."""

from __future__ import annotations

from typing import Any

from .. import xp

Tensor = Any


def strided(x: Tensor) -> Tensor:
    """Every second row of the transpose of a matrix; a view, where the framework has views."""
    if hasattr(x, "T"):
        return x.T[::2]
    return xp.getitem(xp.swapaxes(x, 0, 1), (slice(None, None, 2),))
