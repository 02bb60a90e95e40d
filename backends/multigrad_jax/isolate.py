"""Code that runs for a proof: at once, whatever is traced or transformed around it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import jax

# What people turn on to find their own errors says nothing about a proof's edge values.
STRICT = ("debug_nans", "debug_infs", "log_compiles")


def isolate(run: Callable[[], Any], is_random: bool) -> Any:
    """Return what a function returns, computed at once under jax's defaults."""
    with ExitStack() as stack:
        stack.enter_context(jax.ensure_compile_time_eval())
        stack.enter_context(jax.transfer_guard("allow"))
        for name in STRICT:
            option = getattr(jax, name, None)
            if option is not None and getattr(jax.config, f"jax_{name}", False):
                stack.enter_context(option(False))
        return run()
