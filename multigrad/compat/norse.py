"""Activations of ours among the methods that norse's neurons name: `methods`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multigrad_torch.compat_norse import methods

__all__ = ["methods"]


def __getattr__(name: str) -> Any:
    if name == "methods":
        from ..backend.discovery import load_backend

        load_backend("torch")  # says what to install where torch is missing
        from multigrad_torch.compat_norse import methods

        return methods
    raise AttributeError(f"module 'multigrad.compat.norse' has no attribute {name!r}")
