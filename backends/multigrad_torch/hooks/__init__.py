"""Rules on the gradients of parameters: the door of this room, behind which most never come."""

from __future__ import annotations

from contextlib import AbstractContextManager


def hook_params() -> AbstractContextManager[None]:
    """Let hooks attach by themselves, at each forward inside of the context."""
    from .param_hooks import hook_params

    return hook_params()
