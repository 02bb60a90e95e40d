"""FreeGrad's `functional.vjp` and `functional.jvp`, for torch; the room's name is FreeGrad's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multigrad_torch.functional import jvp, vjp

__all__ = ["jvp", "vjp"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from .backend.discovery import load_backend

        load_backend("torch")  # says what to install where torch is missing
        from multigrad_torch import functional

        return getattr(functional, name)
    raise AttributeError(f"module 'multigrad.functional' has no attribute {name!r}")
