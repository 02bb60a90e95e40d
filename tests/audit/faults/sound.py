"""The sound gradients that faults are planted in: a forward, and what it gives back.

A backward takes the cotangent and the arguments; `np` is the framework's own namespace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Backward = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Sound:
    """A gradient without a fault.

    Attributes:
        shapes: of the arguments; all are floats.
        forward: of the namespace and the arguments.
        backward: of the namespace, the cotangent and the arguments.
    """

    shapes: tuple[tuple[int, ...], ...]
    forward: Callable[..., Any]
    backward: Backward


def last(np: Any, x: Any) -> Any:
    return np.sum(x, -1)[..., None]


def centered(np: Any, x: Any) -> Any:
    return x - last(np, x) / x.shape[-1]


def softmax(np: Any, x: Any) -> Any:
    y = np.exp(x - np.amax(x, -1)[..., None])
    return y / last(np, y)


def softmax_back(np: Any, g: Any, x: Any) -> tuple[Any, ...]:
    y = softmax(np, x)
    return (y * (g - last(np, g * y)),)


def logistic(np: Any, x: Any) -> Any:
    return 0.5 * (1 + np.tanh(0.5 * x))


def slope_of_silu(np: Any, x: Any) -> Any:
    s = logistic(np, x)
    return s + x * s * (1 - s)


def rms(np: Any, x: Any) -> Any:
    return x * (last(np, x * x) / x.shape[-1] + 1e-3) ** -0.5


def rms_back(np: Any, g: Any, x: Any) -> tuple[Any, ...]:
    r = (last(np, x * x) / x.shape[-1] + 1e-3) ** -0.5
    return (r * g - x * r**3 * last(np, g * x) / x.shape[-1],)


def above(np: Any, x: Any, edge: float) -> Any:
    return np.where(x > edge, np.ones_like(x), np.zeros_like(x))


ROWS, TWO = ((5, 3),), ((5, 3), (5, 3))
SOUND: dict[str, Sound] = {
    "square": Sound(ROWS, lambda np, x: x * x, lambda np, g, x: (2 * x * g,)),
    "sine": Sound(ROWS, lambda np, x: np.sin(x), lambda np, g, x: (g * np.cos(x),)),
    "tanh": Sound(
        ROWS, lambda np, x: np.tanh(x), lambda np, g, x: (g * (1 - np.tanh(x) * np.tanh(x)),)
    ),
    "logistic": Sound(
        ROWS,
        logistic,
        lambda np, g, x: (g * logistic(np, x) * (1 - logistic(np, x)),),
    ),
    "silu": Sound(
        ROWS,
        lambda np, x: x * logistic(np, x),
        lambda np, g, x: (g * slope_of_silu(np, x),),
    ),
    "relu": Sound(
        ROWS, lambda np, x: x * above(np, x, 0.0), lambda np, g, x: (g * above(np, x, 0.0),)
    ),
    "cube": Sound(ROWS, lambda np, x: x * x * x, lambda np, g, x: (3 * x * x * g,)),
    "product": Sound(TWO, lambda np, x, y: x * y, lambda np, g, x, y: (g * y, g * x)),
    "squares": Sound(
        TWO, lambda np, x, y: x * x + y * y, lambda np, g, x, y: (2 * x * g, 2 * y * g)
    ),
    "modulate": Sound(
        TWO,
        lambda np, x, y: x * np.sin(y),
        lambda np, g, x, y: (g * np.sin(y), g * x * np.cos(y)),
    ),
    "bias": Sound(
        ((5, 3), (3,)),
        lambda np, x, b: np.tanh(x + b),
        lambda np, g, x, b: (
            g * (1 - np.tanh(x + b) ** 2),
            np.sum(g * (1 - np.tanh(x + b) ** 2), 0),
        ),
    ),
    "center": Sound(ROWS, centered, lambda np, g, x: (centered(np, g),)),
    "softmax": Sound(ROWS, softmax, softmax_back),
    "rms": Sound(ROWS, rms, rms_back),
    "linear": Sound(
        ((5, 3), (3, 3)),
        lambda np, x, w: np.matmul(x, w),
        lambda np, g, x, w: (
            np.matmul(g, np.swapaxes(w, 0, 1)),
            np.matmul(np.swapaxes(x, 0, 1), g),
        ),
    ),
}
