"""Code that runs for a proof: on its own, whatever is transformed around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from .frames import Kind, within
from .recompute import REGION


def isolate(run: Callable[[], Any], is_random: bool) -> Any:
    """Return what a function returns, of which no trace and no region takes note; the generator
    stays.
    """
    state, reset = list(mx.random.state), REGION.set(None)
    try:
        with within(Kind.AT_ONCE):
            return run()
    finally:
        REGION.reset(reset)
        mx.random.state[:] = state
