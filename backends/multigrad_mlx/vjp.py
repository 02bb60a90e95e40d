"""`xg.vjp` on MLX, and code that runs a second time.

`mx.vjp` needs the cotangents before it runs a function, so that a pullback runs it again: in the
context of its first run, on the keys and the random state of that.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from multigrad.backend import GradientError

from .elementwise import is_floating

Tensor = Any
Run = Callable[[Sequence[Tensor]], list[Any]]


@dataclass(slots=True)
class Region:
    """Code that runs again: what its first run read besides its arguments."""

    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    words: list[int] = field(default_factory=lambda: mx.random.state[0].tolist())
    keys: list[Any] = field(default_factory=list)
    repeated: int = -1  # how many of the keys the run that goes on has taken; -1: it is the first

    def first(self, run: Callable[..., Any], *args: Any) -> Any:
        """Return what a function gives, and note its keys."""
        outer = REGION.get()
        reset = REGION.set(self)
        try:
            return run(*args)
        finally:
            REGION.reset(reset)
            if outer is not None and outer.repeated < 0:
                outer.keys += self.keys

    def again(self, run: Callable[..., Any], *args: Any) -> Any:
        """Return the same once more."""
        now = mx.random.state[0].tolist()
        try:
            mx.random.seed(self.words[0] << 32 | self.words[1])
            return self.context.copy().run(self._repeat, run, args)
        finally:
            mx.random.seed(now[0] << 32 | now[1])

    def _repeat(self, run: Callable[..., Any], args: Any) -> Any:
        REGION.set(Region(self.context, self.words, self.keys, 0))
        return run(*args)

    def key(self, draw: Callable[[], Any]) -> Any:
        """Return the next key."""
        if self.repeated < 0:
            self.keys.append(draw())
            return self.keys[-1]
        self.repeated += 1
        return self.keys[self.repeated - 1] if self.repeated <= len(self.keys) else draw()


REGION: contextvars.ContextVar[Region | None] = contextvars.ContextVar(
    "multigrad_mlx_region", default=None
)


def on_draw(draw: Callable[[], Any]) -> Any:
    """Return the key of a call: where a region runs again, that of its first run."""
    region = REGION.get()
    return draw() if region is None else region.key(draw)


def vjp(
    run: Run, inputs: Sequence[Tensor]
) -> tuple[list[Any], Callable[[Sequence[Any]], list[Tensor | None]]]:
    """Return what a function of arrays gives, and the map from cotangents to one gradient per
    input.
    """
    region = Region()
    outputs = region.first(run, inputs)
    places = [i for i, x in enumerate(inputs) if is_floating(x)]

    def pullback(cotangents: Sequence[Any]) -> list[Tensor | None]:
        carrying = [i for i, y in enumerate(outputs) if isinstance(y, mx.array) and is_floating(y)]

        def carried(*given: Tensor) -> list[Tensor]:
            values = list(inputs)
            for i, value in zip(places, given, strict=True):
                values[i] = value
            results = region.again(run, values)
            # MLX counts no cotangent for what it was told to stop, and each other node.
            return [results[i] + 0 for i in carrying]

        given = [as_cotangent(cotangents[i], outputs[i]) for i in carrying]
        found: list[Tensor | None] = [None] * len(inputs)
        if carrying and places:
            _, gradients = mx.vjp(carried, [inputs[i] for i in places], given)
            for i, gradient in zip(places, gradients, strict=True):
                found[i] = gradient
        return found

    return outputs, pullback


def as_cotangent(given: Any, output: Tensor) -> Tensor:
    if given is None:
        return mx.zeros_like(output)
    array = given if isinstance(given, mx.array) else mx.array(given, output.dtype)
    return array.astype(output.dtype)


def forbid_derivative(message: str) -> Callable[[Tensor], Tensor]:
    """Return the identity, which raises where a derivative of it is taken."""

    @mx.custom_function
    def once(x: Tensor) -> Tensor:
        return x

    def refuse(*values: Any) -> Any:
        raise GradientError(message)

    once.vjp(refuse)
    once.jvp(refuse)
    return once
