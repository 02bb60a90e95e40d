"""Code that runs for a proof: on its own, whatever mode is around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle


def isolate(run: Callable[[], Any], is_random: bool) -> Any:
    """Return what a function returns, run eagerly under Paddle's defaults; the generator stays."""
    state, dtype = paddle.get_rng_state(), paddle.get_default_dtype()
    try:
        with paddle.base.dygraph.guard(), paddle.enable_grad(), paddle.amp.auto_cast(enable=False):
            return run()
    finally:
        paddle.set_rng_state(state)
        paddle.set_default_dtype(dtype)
