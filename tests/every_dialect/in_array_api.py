"""The rules of `formulas.py` in the names of the Array API standard, by the namespace of the given
array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Array = Any


class Namespace:
    """Each function is that of the array which it is given."""

    def __getattr__(self, name: str) -> Callable[..., Array]:
        def call(*given: Any, **options: Any) -> Array:
            array = next(each for each in given if hasattr(each, "__array_namespace__"))
            return getattr(array.__array_namespace__(), name)(*given, **options)

        return call


xp = Namespace()


def sigmoid(x: Array) -> Array:
    z = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1.0, z) / (1.0 + z)


def sigmoid_slope(ctx, grad_out: Array, tin: Array) -> Array:
    s = sigmoid(4.0 * tin)
    return grad_out * (4.0 * (s * (1.0 - s)))


def s2nn(ctx, grad_out: Array, tin: Array) -> Array:
    s = sigmoid(4.0 * tin)
    return grad_out * xp.where(tin < 0, 4.0 * (s * (1.0 - s)), 1.0 / (tin + 1.0))


def log_tailed(ctx, grad_out: Array, tin: Array) -> Array:
    flat = xp.where(tin > 0, 1.0, tin - tin)
    return grad_out * xp.where(tin > 1, 1.0 / tin, flat)


def learned_step(ctx, grad_out: Array, tin: Array) -> Array:
    step = xp.round(tin / 0.5)
    return xp.where(step == xp.clip(step, -4, 3), grad_out, 0.0)


def clip_norm(ctx, grad_out: Array, tin: Array) -> Array:
    norm = grad_out.__array_namespace__().linalg.vector_norm(grad_out)
    return grad_out * xp.minimum(1.0 / xp.maximum(norm, 1e-6), 1.0)


def gumbel_softmax(ctx, grad_out: Array, tin: Array) -> Array:
    powers = xp.exp(tin - xp.max(tin, axis=-1, keepdims=True))
    y = powers / xp.sum(powers, axis=-1, keepdims=True)
    return y * (grad_out - xp.sum(grad_out * y, axis=-1, keepdims=True))


RULES = {
    "straight_through": lambda ctx, g, x: +g,
    "deconvnet": lambda ctx, g, x: xp.maximum(g, 0),
    "relu_mask": lambda ctx, g, x: g * xp.astype(xp.greater(x, 0), g.dtype),
    "threshold_mask": lambda ctx, g, x: xp.where(x >= 0.5, g, xp.zeros_like(g)),
    "scaled_triangle": lambda ctx, g, x: g * (0.3 * xp.clip(1.0 - xp.abs(x), min=0.0)),
    "superspike": lambda ctx, g, x: xp.divide(g, xp.pow(1.0 + 100.0 * xp.abs(x), 2)),
    "sigmoid_slope": sigmoid_slope,
    "s2nn": s2nn,
    "log_tailed": log_tailed,
    "q_pseudo_spike": lambda ctx, g, x: g * xp.pow(1.0 + xp.abs(x), -3.0),
    "beta_smooth_relu": lambda ctx, g, x: g * sigmoid(10.0 * x),
    "learned_step": learned_step,
    "clip_norm": clip_norm,
    "magnitude_aware_sign": lambda ctx, g, x: (
        g * xp.mean(xp.abs(x), axis=0, keepdims=True) * (xp.abs(x) <= 1.0)
    ),
    "gumbel_softmax": gumbel_softmax,
}
