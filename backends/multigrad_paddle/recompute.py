"""Regions that run again within backward (`paddle.distributed.fleet.utils.recompute`).

The second run would be under the rule in force where backward is called. Paddle has no hook there,
so that what it runs is run, both times, in the context of the call.
"""

from __future__ import annotations

import contextvars
import importlib
from collections.abc import Callable
from typing import Any


def carried(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs in the context of now, whenever it is called."""
    context = contextvars.copy_context()

    def call(*args: Any, **kwargs: Any) -> Any:
        return context.copy().run(function, *args, **kwargs)

    return call


def follow() -> None:
    """Let both ways of recomputing run what they are given in the context of the call."""
    # By its name: the package has a function of that name in the place of the module.
    room: Any = importlib.import_module("paddle.distributed.fleet.recompute.recompute")
    forward, again = room.RecomputeFunction.forward, room._recompute_without_reentrant

    def forward_carried(ctx: Any, run_function: Any, *args: Any, **kwargs: Any) -> Any:
        return forward(ctx, carried(run_function), *args, **kwargs)

    def again_carried(function: Any, *args: Any, **kwargs: Any) -> Any:
        return again(carried(function), *args, **kwargs)

    room.RecomputeFunction.forward = staticmethod(forward_carried)
    room._recompute_without_reentrant = again_carried


follow()
