"""Activations of ours among the methods that norse's neurons name: `methods`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..backend.finding.discovery import served_by

if TYPE_CHECKING:
    from multigrad_torch.compat.norse import methods

__all__ = ["methods"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = served_by("torch", "compat.norse", __name__, __all__)
