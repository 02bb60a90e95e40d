"""The rules of `formulas.py` as they are written with `xg.xp`."""

from __future__ import annotations

from typing import Any

from multigrad import xp

Array = Any


def log_tailed(ctx, grad_out: Array, tin: Array) -> Array:
    flat = xp.where(tin > 0, 1.0, tin - tin)
    return grad_out * xp.where(tin > 1, xp.reciprocal(tin), flat)


def learned_step(ctx, grad_out: Array, tin: Array) -> Array:
    step = xp.round(tin / 0.5)
    return xp.where(step == xp.clip(step, -4, 3), grad_out, 0.0)


RULES = {
    "straight_through": lambda ctx, g, x: xp.positive(g),
    "deconvnet": lambda ctx, g, x: xp.relu(g),
    "relu_mask": lambda ctx, g, x: g * xp.heaviside(x),
    "threshold_mask": lambda ctx, g, x: xp.where(xp.greater_equal(x, 0.5), g, 0.0),
    "scaled_triangle": lambda ctx, g, x: g * (0.3 * xp.relu(1.0 - xp.abs(x))),
    "superspike": lambda ctx, g, x: xp.divide(g, xp.pow(1.0 + 100.0 * xp.abs(x), 2)),
    "log_tailed": log_tailed,
    "q_pseudo_spike": lambda ctx, g, x: g * xp.pow(1.0 + xp.abs(x), -3.0),
    "learned_step": learned_step,
    "magnitude_aware_sign": lambda ctx, g, x: (
        g * xp.mean(xp.abs(x), axis=0, keepdims=True) * (xp.abs(x) <= 1.0)
    ),
}
