"""Code that runs for a proof: on its own, whatever is transformed around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..compile.frames import Kind, within
from ..compile.recompute import REGION
from ..kernels.random import GENERATOR


def isolate(run: Callable[[], Any], is_random: bool) -> Any:
    """Return what a function returns, of which no trace and no region takes note; the generator
    stays.
    """
    state, reset = GENERATOR.get_state(), REGION.set(None)
    try:
        with within(Kind.AT_ONCE):
            return run()
    finally:
        REGION.reset(reset)
        GENERATOR.set_state(state)
