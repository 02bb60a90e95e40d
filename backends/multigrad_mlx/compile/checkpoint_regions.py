"""Code that runs a second time within backward, by `mx.checkpoint` or `xg.vjp`.

The second run would use the rule in force where backward runs. MLX has no hook for this, so the
second run is made in the context of the first one, with the keys that were drawn there.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from .trace_dependencies import TransformedFunction

make_checkpointed = mx.checkpoint  # MLX's own, which is replaced below


@dataclass(slots=True)
class RecomputedRegion:
    """Code that runs again, with what its first run read besides its arguments.

    Attributes:
        outer: the region around it, which provides its keys.
        repeated: how many of the keys the current run has used; -1 in the first run.
    """

    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    keys: list[Any] = field(default_factory=list)
    repeated: int = -1
    outer: RecomputedRegion | None = field(default_factory=lambda: REGION.get())

    def first(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a function, note the keys that it draws, and return its result."""
        reset = REGION.set(self)
        try:
            return run(*args, **kwargs)
        finally:
            REGION.reset(reset)

    def again(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # A copy, as a context cannot be entered twice, and a region may run again within itself.
        return self.context.copy().run(self._repeat, run, args, kwargs)

    def _repeat(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        REGION.set(RecomputedRegion(self.context, self.keys, 0, None))
        return run(*args, **kwargs)

    def key(self, draw: Callable[[], Any]) -> Any:
        # The first run draws, from the region around it if there is one, and notes each key.
        if self.repeated < 0:
            self.keys.append(draw() if self.outer is None else self.outer.key(draw))
            return self.keys[-1]
        self.repeated += 1
        return self.keys[self.repeated - 1] if self.repeated <= len(self.keys) else draw()


REGION: contextvars.ContextVar[RecomputedRegion | None] = contextvars.ContextVar(
    "multigrad_mlx_region", default=None
)


def on_draw(draw: Callable[[], Any]) -> Any:
    """Return the key of a call; in a second run of a region, the key of its first run."""
    region = REGION.get()
    return draw() if region is None else region.key(draw)


def seeded(run: Callable[..., Any], words: list[int], *args: Any) -> Any:
    """Run a function from a given state of MLX's own generator, which is restored afterwards."""
    now = mx.random.state[0].tolist()
    try:
        mx.random.seed(words[0] << 32 | words[1])
        return run(*args)
    finally:
        mx.random.seed(now[0] << 32 | now[1])


def checkpoint(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return mx.checkpoint(fun), each call of which is one region."""

    def call(*args: Any, **kwargs: Any) -> Any:
        region, runs = RecomputedRegion(), 0

        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal runs
            runs += 1
            turn = region.first if runs == 1 else region.again
            return turn(fun, *args, **kwargs)

        return make_checkpointed(run)(*args, **kwargs)

    return TransformedFunction(fun, call)


mx.checkpoint = checkpoint
