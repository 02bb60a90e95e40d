"""The torch module `Activation`, under the name that FreeGrad gives its room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import served_by

__all__ = ["Activation"]

if TYPE_CHECKING:
    from multigrad_torch.modules import Activation
else:
    __getattr__, __dir__ = served_by("torch", "modules", __name__, __all__)
