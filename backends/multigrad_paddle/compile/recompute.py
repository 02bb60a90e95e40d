"""Regions that run again within backward (`paddle.distributed.fleet.utils.recompute`).

The second run would be under the rule in force where backward is called. Paddle has no hook there,
so that what it runs is run in the context of the call, and again with the keys of its first run.
"""

from __future__ import annotations

import contextvars
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Draw = Callable[[], Any]


@dataclass(slots=True)
class Run:
    """One run of a region.

    Attributes:
        keys: those of the region.
        outer: the run around it, which draws them.
        taken: how many of them it has taken.
    """

    keys: list[Any]
    outer: Run | None
    taken: int = 0

    def key(self, draw: Draw) -> Any:
        """Return the next key, drawn where it is not there."""
        self.taken += 1
        if self.taken > len(self.keys):
            self.keys.append(draw() if self.outer is None else self.outer.key(draw))
        return self.keys[self.taken - 1]


RUN: contextvars.ContextVar[Run | None] = contextvars.ContextVar("multigrad_paddle", default=None)


def on_draw(draw: Draw) -> Any:
    """Return the key of a call: where a region runs again, that of its first run."""
    run = RUN.get()
    return draw() if run is None else run.key(draw)


def carried(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs, each time, in the context of now and on the same keys."""
    context, keys = contextvars.copy_context(), []

    def run(args: Any, kwargs: Any) -> Any:
        RUN.set(Run(keys, RUN.get()))
        return function(*args, **kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        return context.copy().run(run, args, kwargs)

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
