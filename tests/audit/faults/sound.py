"""The sound gradients that faults are planted in, and how each framework makes its own of them.

A backward takes the cotangent and the arguments; `np` is the framework's own namespace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy

from ...harness.torch_class import torch_class

Backward = Callable[..., tuple[Any, ...]]
NAMESPACES = {"torch": "torch", "jax": "jax.numpy", "tensorflow": "tensorflow.experimental.numpy"}
# What faults keep outside of a call; of the last forward the arguments, `last`, and how many there
# were, `forwards`; of torch's call what is its `own`.
SHARED: dict[Any, Any] = {}


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


def logsumexp(np: Any, x: Any) -> Any:
    most = np.amax(x, -1)
    return np.log(np.sum(np.exp(x - most[..., None]), -1)) + most


def logistic(np: Any, x: Any) -> Any:
    return 0.5 * (1 + np.tanh(0.5 * x))


def slope_of_silu(np: Any, x: Any) -> Any:
    s = logistic(np, x)
    return s + x * s * (1 - s)


def root_of_mean(np: Any, x: Any) -> Any:
    return (last(np, x * x) / x.shape[-1] + 1e-3) ** -0.5


def rms_back(np: Any, g: Any, x: Any) -> tuple[Any, ...]:
    r = root_of_mean(np, x)
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
    "bump": Sound(
        ROWS, lambda np, x: np.exp(-x * x), lambda np, g, x: (-2 * x * np.exp(-x * x) * g,)
    ),
    "weighted": Sound(
        TWO,
        lambda np, x, y: np.sum(x * y, -1),
        lambda np, g, x, y: (g[..., None] * y, g[..., None] * x),
    ),
    "wave": Sound(
        TWO,
        lambda np, x, y: np.sum(x * np.sin(y), -1),
        lambda np, g, x, y: (g[..., None] * np.sin(y), g[..., None] * x * np.cos(y)),
    ),
    "center": Sound(ROWS, centered, lambda np, g, x: (centered(np, g),)),
    "softmax": Sound(ROWS, softmax, softmax_back),
    "logsumexp": Sound(ROWS, logsumexp, lambda np, g, x: (g[..., None] * softmax(np, x),)),
    "rms": Sound(ROWS, lambda np, x: x * root_of_mean(np, x), rms_back),
    "linear": Sound(
        ((5, 3), (3, 3)),
        lambda np, x, w: np.matmul(x, w),
        lambda np, g, x, w: (
            np.matmul(g, np.swapaxes(w, 0, 1)),
            np.matmul(np.swapaxes(x, 0, 1), g),
        ),
    ),
}


def inputs_of(base: str) -> tuple[Any, ...]:
    generator = numpy.random.default_rng(8)
    return tuple(generator.standard_normal(n).astype("float32") for n in SOUND[base].shapes)


def make(framework: str, base: str, edit: Backward | None = None, **others: Any) -> Any:
    """Return a custom gradient of a framework, whose backward an edit makes of the sound one.

    Args:
        others: further methods of a class of torch's.
    """
    SHARED.clear()
    np: Any = import_module(NAMESPACES[framework])
    sound = SOUND[base]

    def forward(*x: Any) -> Any:
        SHARED.update(last=x, forwards=SHARED.get("forwards", 0) + 1)
        return sound.forward(np, *x)

    def backward(g: Any, *x: Any) -> tuple[Any, ...]:
        return sound.backward(np, g, *x) if edit is None else edit(np, sound.backward, g, *x)

    return MAKERS[framework](forward, backward, **others)


def torch_function(forward: Callable[..., Any], backward: Backward, **others: Any) -> Any:
    def kept(ctx: Any, *x: Any) -> Any:
        ctx.save_for_backward(*x)
        ctx.save_for_forward(*x)
        return forward(*x)

    def back(ctx: Any, g: Any) -> tuple[Any, ...]:
        SHARED["own"] = ctx.__dict__
        return backward(g, *ctx.saved_tensors)

    return torch_class(back, **others)(kept)


def jax_function(forward: Callable[..., Any], backward: Backward) -> Any:
    planted = import_module("jax").custom_vjp(forward)
    planted.defvjp(lambda *x: (forward(*x), x), lambda x, g: backward(g, *x))
    return planted


def tensorflow_function(forward: Callable[..., Any], backward: Backward) -> Any:
    @import_module("tensorflow").custom_gradient
    def planted(*x: Any) -> Any:
        return forward(*x), lambda g: backward(g, *x)

    return planted


MAKERS = {"torch": torch_function, "jax": jax_function, "tensorflow": tensorflow_function}
