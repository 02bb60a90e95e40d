"""The formulas of schedules, in the neutral dialect: of numbers, and of any framework's tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

Tensor = Any


def _clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def _where(condition: bool, x: float, y: float) -> float:
    return x if condition else y


# The few functions of the dialect that formulas need, for numbers: a step asks each time.
NUMBERS = SimpleNamespace(
    clip=_clip,
    cos=math.cos,
    floor=math.floor,
    maximum=max,
    minimum=min,
    pi=math.pi,
    pow=pow,
    where=_where,
)


def _linear(xp: Any, step: Tensor, start: float, end: float, steps: float, begin: float) -> Tensor:
    done = xp.clip((step - begin) / steps, 0.0, 1.0)
    return start * (1.0 - done) + end * done


def _cosine(xp: Any, step: Tensor, start: float, end: float, steps: float, begin: float) -> Tensor:
    done = xp.clip((step - begin) / steps, 0.0, 1.0)
    left = 0.5 * (1.0 + xp.cos(xp.pi * done))
    return start * left + end * (1.0 - left)


def _exponential(
    xp: Any,
    step: Tensor,
    start: float,
    rate: float,
    every: float,
    staircase: bool,
    end: float | None,
    begin: float,
) -> Tensor:
    times = xp.maximum((step - begin) / every, 0.0)
    value = start * xp.pow(rate, xp.floor(times) if staircase else times)
    if end is None:
        return value
    return xp.maximum(value, end) if start > end else xp.minimum(value, end)


def _piecewise(
    xp: Any, step: Tensor, boundaries: tuple[float, ...], values: tuple[float, ...]
) -> Tensor:
    value = values[0] + 0.0 * step
    for boundary, later in zip(boundaries, values[1:], strict=True):
        value = xp.where(step >= boundary, later, value)
    return value


FORMULAS: dict[str, Callable[..., Any]] = {
    "linear": _linear,
    "cosine": _cosine,
    "exponential": _exponential,
    "piecewise": _piecewise,
}
