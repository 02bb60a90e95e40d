"""Rules and Functions of a user's own, which pickles name by this module."""

from __future__ import annotations

import numpy as np

import multigrad as xg

xp = xg.xp
TABLE = np.array([0.5, 1.0, -2.0, 4.0])
COUNTS = np.array([3, 0, 2, 1], np.int16)


def window(ctx, grad_out, tin, width: float = 0.75, hard: bool = True, mode: str = "sum"):
    """A window, hard or soft; 'sum' adds what is inside."""
    inside = grad_out * (abs(tin) < width if hard else 1 / (1 + tin * tin / width))
    return inside + tin if mode == "sum" else inside


def band(ctx, grad_out, tin, edges: tuple[float, float] = (-0.5, 0.5), top: float | None = None):
    """grad_out between two edges, perhaps limited."""
    low, high = edges
    inside = xp.where((tin >= low) & (tin <= high), grad_out, 0.0)
    return inside if top is None else xp.minimum(inside, top)


def weighted(ctx, grad_out, tin):
    return grad_out * TABLE + tin * COUNTS


def by_rank(ctx, grad_out, tin):
    return grad_out * sum(float(i + 1) for i in range(tin.ndim))


def by_dtype(ctx, grad_out, tin):
    return grad_out * 2 if tin.dtype == "float32" else grad_out * 3


def by_value(ctx, grad_out, tin, slope=2.0):
    return grad_out * slope if slope > 1 else grad_out


def two_draws(ctx, grad_out, tin):
    return grad_out * xp.rand_like(grad_out) + xp.rand_like(grad_out)


def needs(ctx, grad_out, tin, slope: float, power: int = 3):
    return grad_out * slope**power


def in_numpy(ctx, grad_out, tin, shift: float = 0.25):
    return np.where(np.abs(tin) <= shift, grad_out, np.square(grad_out) / tin.size)


def halved(ctx, grad_out, tin):
    return grad_out / 2


@xg.custom_gradient
def squared(x):
    """A square with half its gradient."""

    def grad(upstream):
        return upstream * x

    return x * x, grad


@xg.custom_gradient
def nested(x, options, *, power, mode):
    def grad(upstream):
        a, b = upstream["y"], upstream["rest"][0]
        return a * options["w"] + b, {"w": a * x, "n": None}, {"power": None, "mode": None}

    y = x * options["w"] if mode == "mean" else x
    return {"y": y, "rest": [x**power, "word", options["n"] > 1]}, grad


@xg.custom_gradient
def dropped(x):
    keep = xp.rand_like(x) > 0.5

    def grad(upstream):
        return upstream * keep + xp.rand_like(x)

    return x * keep, grad


def clip(x, w, limit):
    return xp.clip(x * w, 0.0, limit), xp.sum(x, axis=0)


def clip_backward(grad_out, x, w, limit):
    inside = (x * w > 0) & (x * w < limit)
    return grad_out[0] * w * inside + grad_out[1], xp.sum(grad_out[0] * x * inside, axis=0), None


clipped = xg.function(clip, clip_backward)
kept = xg.function(
    lambda x: x * abs(x),
    lambda grad_out, kept: grad_out * kept[0] + kept[1],
    residuals=lambda y, x: (x, y),
)
derived = xg.function(lambda x, w: (x @ w) ** 2 + TABLE[:3], None)


@xg.function
def summed(x, w):
    """Looks at the rank of one argument and at the lengths of another."""
    total = sum(xp.sum(x, axis=i, keepdims=True) for i in range(x.ndim)) + x
    return total * float(w.shape[0])


@xg.function
def steep(x, slope):
    return x * slope if slope > 1 else x


@xg.function
def picked(x, i):
    return xp.take(x, np.array([1, 0, 2]), axis=0) * xp.where(i > 1, 1.0, 0.5)


@xg.function
def of_another(x):
    return squared(x) * 2 + x


def of_a_function(ctx, grad_out, tin):
    return grad_out * squared(tin)
