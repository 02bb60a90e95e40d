"""Transforms of a framework that let tensors alone come out of a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def run_on_tensors_alone(
    transform: Callable[[Callable[..., Any]], Callable[..., Any]],
    run: Callable[[Sequence[Any]], Sequence[Any]],
    inputs: Sequence[Any],
    is_tensor: Callable[[Any], Any],
) -> list[Any]:
    """Return what a function gives under such a transform, what is no tensor among it."""
    others: dict[int, Any] = {}

    def tensors_only(*given: Any) -> list[Any]:
        outputs = run(given)
        others.update((i, y) for i, y in enumerate(outputs) if not is_tensor(y))
        return [y for y in outputs if is_tensor(y)]

    found = transform(tensors_only)(*inputs)
    rest = iter(found)
    return [others[i] if i in others else next(rest) for i in range(len(found) + len(others))]
