"""Probe for audits: a function under MLX's forward mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ..kernels.elementwise import is_floating
from .vjp import Run

Tensor = Any
# Why MLX lacks the other probes.
LACKS = {
    "autocast": "MLX has no autocast",
    "kept": "MLX keeps a custom function's arguments and outputs, whatever its backward reads",
}


def jvp(
    run: Run, inputs: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> tuple[list[Any], list[Any]]:
    """Return the outputs of a function of arrays, and their tangents, None except for floats."""
    places = [i for i, x in enumerate(inputs) if is_floating(x)]
    others: list[Any] = []

    def carried(*given: Tensor) -> list[Tensor]:
        values = list(inputs)
        for i, value in zip(places, given, strict=True):
            values[i] = value
        others[:] = run(values)
        # mx.jvp returns no tangent of an output that was stopped; adding 0 makes each output a
        # node.
        return [y + 0 for y in others if isinstance(y, mx.array) and is_floating(y)]

    moves = [mx.zeros_like(inputs[i]) if tangents[i] is None else tangents[i] for i in places]
    found, pushed = mx.jvp(carried, [inputs[i] for i in places], moves)
    pairs = iter(zip(found, pushed, strict=True))
    outputs, changes = list(others), [None] * len(others)
    for i, y in enumerate(others):
        if isinstance(y, mx.array) and is_floating(y):
            outputs[i], changes[i] = next(pairs)
    return outputs, changes
