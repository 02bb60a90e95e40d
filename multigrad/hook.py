"""Rules on parameter gradients, by torch hooks; the room's name is FreeGrad's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multigrad_torch.param_hooks import ParamHooks, attach_param_hooks, remove_param_hooks

__all__ = ["ParamHooks", "attach_param_hooks", "remove_param_hooks"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from .backend.discovery import load_backend

        load_backend("torch")  # says what to install where torch is missing
        from multigrad_torch import param_hooks

        return getattr(param_hooks, name)
    raise AttributeError(f"module 'multigrad.hook' has no attribute {name!r}")
