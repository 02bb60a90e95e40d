"""`xg.vjp` on MLX, and identities that refuse a derivative.

`mx.vjp` needs the cotangents before it runs a function, so a pullback runs the function again: in
the context of its first run, with its keys and random state (checkpoint_regions.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from multigrad.backend import GradientError

from ..compile.checkpoint_regions import REGION, RecomputedRegion, seeded
from ..compile.trace_dependencies import FrameKind, within
from ..kernels.elementwise import is_floating
from ..kernels.random import GENERATOR

Tensor = Any
Run = Callable[[Sequence[Tensor]], list[Any]]


def vjp(
    run: Run, inputs: Sequence[Tensor]
) -> tuple[list[Any], Callable[[Sequence[Any]], list[Tensor | None]]]:
    """Return the outputs of a function of arrays, and the map of cotangents to gradients."""
    region, words = RecomputedRegion(), mx.random.state[0].tolist()
    outputs = region.first(run, inputs)
    places = [i for i, x in enumerate(inputs) if is_floating(x)]

    def pullback(cotangents: Sequence[Any]) -> list[Tensor | None]:
        carrying = [i for i, y in enumerate(outputs) if isinstance(y, mx.array) and is_floating(y)]

        def carried(*given: Tensor) -> list[Tensor]:
            values = list(inputs)
            for i, value in zip(places, given, strict=True):
                values[i] = value
            results = seeded(region.again, words, run, values)
            # mx.vjp takes no cotangent for an output that was stopped; adding 0 makes each output a
            # node.
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
    """Return the identity as a function whose derivative raises an error."""

    @mx.custom_function
    def once(x: Tensor) -> Tensor:
        return x

    def refuse(*values: Any) -> Any:
        raise GradientError(message)

    once.vjp(refuse)
    once.jvp(refuse)
    return once


def refuse_gradient(message: str) -> Callable[[Any], Any]:
    """Return the identity on numbers, which raises an error if an array's derivative is taken."""
    once = forbid_derivative(message)

    def refuse(number: Any) -> Any:
        return once(number) if isinstance(number, mx.array) else number

    return refuse


def isolate(run: Callable[[], Any], is_random: bool) -> Any:
    """Return the result of a function that runs hidden from every trace and region."""
    # The run may draw, and must not shift the program's own draws.
    state, reset = GENERATOR.get_state(), REGION.set(None)
    try:
        with within(FrameKind.AT_ONCE):
            return run()
    finally:
        REGION.reset(reset)
        GENERATOR.set_state(state)
