"""Rules on the gradients of parameters. `param_hooks` is imported late, as most
programs use none.
"""

from __future__ import annotations

from contextlib import AbstractContextManager


def hook_params() -> AbstractContextManager[None]:
    """Let hooks attach automatically, at each forward within the context."""
    from .param_hooks import hook_params

    return hook_params()
