"""Rules on parameter gradients, by torch hooks; the room's name is FreeGrad's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import served_by

__all__ = ["ParamHooks", "attach_param_hooks", "remove_param_hooks"]

if TYPE_CHECKING:
    from multigrad_torch.hooks.param_hooks import ParamHooks, attach_param_hooks, remove_param_hooks
else:
    __getattr__, __dir__ = served_by("torch", "hooks.param_hooks", __name__, __all__)
