"""Activations of ours among the methods that norse's neurons name: `methods`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import served_by

__all__ = ["methods"]

if TYPE_CHECKING:
    from multigrad_torch.compat.norse import methods
else:
    __getattr__, __dir__ = served_by("torch", "compat.norse", __name__, __all__)
