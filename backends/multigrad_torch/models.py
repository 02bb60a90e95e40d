"""What this framework's users have: modules, for `xg.attach`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from multigrad.models.handle import Attachment


def is_model(value: Any) -> bool:
    """Return whether rules can be attached to a value."""
    return isinstance(value, nn.Module)


def attach(model: nn.Module, rules: Any) -> Attachment:
    """Put rules on layers and operations of a module; see `multigrad.attach.attach`."""
    # The rules of attribution make Functions, which ask for this backend; and most never attach.
    from .attaching import attach_rules

    return attach_rules(model, rules)
