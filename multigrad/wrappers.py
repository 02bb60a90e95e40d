"""The torch module `Activation`, under the name that FreeGrad gives its room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multigrad_torch.modules import Activation

__all__ = ["Activation"]


def __getattr__(name: str) -> Any:
    if name == "Activation":
        from .backend.discovery import load_backend

        load_backend("torch")  # says what to install where torch is missing
        from multigrad_torch.modules import Activation

        return Activation
    raise AttributeError(f"module 'multigrad.wrappers' has no attribute {name!r}")
