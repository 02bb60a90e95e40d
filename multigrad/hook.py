"""Rules on parameter gradients, by torch hooks; the room's name is FreeGrad's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multigrad_torch.hooks import attach_param_hooks

__all__ = ["attach_param_hooks"]


def __getattr__(name: str) -> Any:
    if name == "attach_param_hooks":
        from .lowering.backend import load_backend

        load_backend("torch")  # says what to install where torch is missing
        from multigrad_torch.hooks import attach_param_hooks

        return attach_param_hooks
    raise AttributeError(f"module 'multigrad.hook' has no attribute {name!r}")
