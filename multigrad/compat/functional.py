"""FreeGrad's `functional.vjp` and `functional.jvp`, for torch; the room's name is FreeGrad's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import served_by

__all__ = ["jvp", "vjp"]

if TYPE_CHECKING:
    from multigrad_torch.compat.functional import jvp, vjp
else:
    __getattr__, __dir__ = served_by("torch", "compat.functional", __name__, __all__)
