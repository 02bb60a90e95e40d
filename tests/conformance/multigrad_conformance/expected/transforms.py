"""The oracles of rules that are no factor on the gradient: float64 NumPy, as the formulas are read.

Squares and sums are taken in float64, where no finite input of the narrower dtypes overflows; of
float64 itself the inputs are scaled first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..oracles import Draws, Exact, finfo, maximum, minimum, slack, where

Array = Any


def rounded(g: Exact, value: Array, scale: Array = 0.0) -> Exact:
    """A result with what a dozen roundings may do to it, or to something as large as `scale`."""
    eps = float(finfo(g.dtype).eps)
    error = 12 * eps * np.maximum(np.abs(value), scale) + slack(g.dtype)
    top = float(finfo(g.dtype).max)
    value = np.where(np.abs(value) > top, np.copysign(np.inf, value), value)
    return Exact(value, np.broadcast_to(error, value.shape), np.full(value.shape, np.inf), g.dtype)


def length(x: Array) -> float:
    """The Euclidean norm."""
    top = np.max(np.abs(x), initial=0.0)
    return 0.0 if top == 0 else float(top * np.sqrt(np.sum((x / top) ** 2)))


def stop(g: Exact, x: Exact, draws: Draws) -> Exact:
    return g.lift(np.zeros_like(g.value))


def scale(g: Exact, x: Exact, draws: Draws, s: float = 1.0) -> Exact:
    return s * g


def sign(g: Exact, x: Exact, draws: Draws) -> Exact:
    return g.apply(np.sign, 0)


def clip_value(g: Exact, x: Exact, draws: Draws, limit: float = 1.0) -> Exact:
    return minimum(maximum(g, -limit), limit)


def clip_rms(g: Exact, x: Exact, draws: Draws, threshold: float = 1.0) -> Exact:
    rms = length(g.value) / max(g.value.size, 1) ** 0.5
    return rounded(g, g.value / max(1.0, rms / threshold))


def normalize(g: Exact, x: Exact, draws: Draws, scale: float = 1.0, eps: float = 1e-6) -> Exact:
    eps = float(np.asarray(eps, g.dtype))
    return rounded(g, g.value / (length(g.value) + eps or 1.0) * scale)


def units(shape: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """The places of the units of a parameter."""
    if sum(n != 1 for n in shape) < 2:
        yield (...,)
    elif len(shape) < 4:
        yield from ((slice(None), *i) for i in np.ndindex(shape[1:]))
    else:
        yield from ((..., i) for i in range(shape[-1]))


def adaptive_clip(
    g: Exact, x: Exact, draws: Draws, clipping: float = 0.01, eps: float = 1e-3
) -> Exact:
    value = np.array(g.value)
    for unit in units(value.shape):
        limit = clipping * max(length(x.value[unit]), eps)
        value[unit] *= min(1.0, limit / max(length(g.value[unit]), 1e-6))
    return rounded(g, value)


def centralize(g: Exact, x: Exact, draws: Draws) -> Exact:
    value = np.array(g.value)
    if value.ndim < 2:
        return rounded(g, value)
    scale = np.zeros_like(value)
    for i in range(len(value)):
        value[i] -= np.mean(value[i] / 1e3) * 1e3
        scale[i] = np.max(np.abs(g.value[i]), initial=0.0)
    return rounded(g, value, scale)


def magnitude_aware(g: Exact, x: Exact, draws: Draws, clip: float = 1.0) -> Exact:
    size = np.abs(x.value)
    mean = size if size.ndim < 2 else np.zeros(size.shape[-1])
    if size.ndim > 1:
        for place in itertools.product(*map(range, size.shape[:-1])):
            mean = mean + size[place] / (size.size // size.shape[-1])
    edge = float(np.asarray(clip, g.dtype))
    return rounded(g, g.value * (mean * (size <= edge)))


def dorefa_weights(g: Exact, x: Exact, draws: Draws) -> Exact:
    largest = max(abs(np.tanh(v)) for v in x.value.ravel())
    tail = np.exp(-2 * np.abs(x.value))
    return rounded(g, g.value * (4 * tail / (1 + tail) ** 2) / largest)  # 1 - tanh^2


def clamp_with_grad(g: Exact, x: Exact, draws: Draws, low: float = 0.0, high: float = 1.0) -> Exact:
    low, high = (float(np.asarray(edge, g.dtype)) for edge in (low, high))
    beyond = np.sign(x.value - np.clip(x.value, low, high))
    return rounded(g, np.where(np.sign(g.value) * beyond >= 0, g.value, 0.0))


def noisy_threshold(g: Exact, x: Exact, draws: Draws, t: float = 0.0, sigma: float = 0.1) -> Exact:
    return where(x >= t, g, 0.0) + sigma * draws.normal()


def add_noise(
    g: Exact, x: Exact, draws: Draws, eta: float = 0.01, gamma: float = 0.55, count: float = 0.0
) -> Exact:
    return g + g.lift((eta / (1 + count) ** gamma) ** 0.5) * draws.normal()


def guided(g: Exact, x: Exact, draws: Draws) -> Exact:
    return maximum(g, 0.0) * (x > 0)


def deconvnet(g: Exact, x: Exact, draws: Draws) -> Exact:
    return maximum(g, 0.0)


def renamed(oracle: Callable[..., Exact], **names: str) -> Callable[..., Exact]:
    """The same formula under a package's names for its params."""

    def other(g: Exact, x: Exact, draws: Draws, **params: float) -> Exact:
        return oracle(g, x, draws, **{names.get(name, name): v for name, v in params.items()})

    return other


TRANSFORMS: dict[str, Callable[..., Exact]] = {
    "stop": stop,
    "jax.stop_gradient": stop,
    "tensorflow.stop_gradient": stop,
    "optax.set_to_zero": stop,
    "optax.scale": renamed(scale, step_size="s"),
    "pytorch_revgrad.RevGrad": lambda g, x, draws, alpha=1.0: -alpha * g,
    "quantization_noise": lambda g, x, draws, factor=0.5: (1.0 - factor) * g,
    "sign": sign,
    "optax.scale_by_sign": sign,
    "clip_value": clip_value,
    "optax.clip": renamed(clip_value, max_delta="limit"),
    "torch.clip_grad_value_": renamed(clip_value, clip_value="limit"),
    "clip_rms": clip_rms,
    "optax.clip_by_block_rms": clip_rms,
    "normalize": normalize,
    "optax.normalize_by_update_norm": renamed(normalize, scale_factor="scale"),
    "adaptive_clip": adaptive_clip,
    "optax.adaptive_grad_clip": adaptive_clip,
    "optax.centralize": centralize,
    "optax.add_noise": add_noise,
    "magnitude_aware_sign": magnitude_aware,
    "larq.MagnitudeAwareSign": renamed(magnitude_aware, clip_value="clip"),
    "dorefa_weights": dorefa_weights,
    "clamp_with_grad": clamp_with_grad,
    "sign_jam": lambda g, x, draws: draws.uniform() * g.apply(np.sign, 0),
    "noisy_threshold": noisy_threshold,
    "zennit.ReLUGuidedBackprop": guided,
    "captum.GuidedBackprop": guided,
    "innvestigate.guided_backprop": guided,
    "zennit.ReLUDeconvNet": deconvnet,
    "captum.Deconvolution": deconvnet,
    "innvestigate.deconvnet": deconvnet,
}
RANDOM_TRANSFORMS = {"sign_jam", "noisy_threshold", "optax.add_noise"}
