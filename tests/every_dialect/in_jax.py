"""The rules of `formulas.py` as they are written in jax.numpy, jax.nn, jax.lax and jax.scipy."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.nn import relu
from jax.scipy.special import erf


def threshold_mask(ctx, grad_out: Array, tin: Array) -> Array:
    grad_out = grad_out.at[tin < 0.5].set(0.0)
    return jnp.where(jnp.isnan(tin), 0.0, grad_out)


def half_open_window(ctx, grad_out: Array, tin: Array) -> Array:
    inside = (tin > -0.5) & (tin <= 2.0)
    return lax.select(inside, grad_out, jnp.zeros_like(grad_out))


def sigmoid_slope(ctx, grad_out: Array, tin: Array) -> Array:
    s = jax.nn.sigmoid(4.0 * tin)
    return grad_out * (4.0 * (s * (1.0 - s)))


@functools.partial(jax.jit, static_argnums=(1, 2))
def normal(x: Array, center: float, sigma: float) -> Array:
    return jnp.exp(-0.5 * ((x - center) / sigma) ** 2) / (sigma * (2 * jnp.pi) ** 0.5)


def circle(ctx, grad_out: Array, tin: Array) -> Array:
    r = 4.0 + jnp.square(tin)
    return grad_out * (8.0 / (r * lax.sqrt(r)))


def s2nn(ctx, grad_out: Array, tin: Array) -> Array:
    s = jax.nn.sigmoid(4.0 * tin)
    return grad_out * jnp.where(tin < 0, 4.0 * (s * (1.0 - s)), 1.0 / (tin + 1.0))


def gelu_slope(ctx, grad_out: Array, tin: Array) -> Array:
    inside = 0.5 * (1.0 + erf(tin * 0.5**0.5))
    return grad_out * (inside + tin * (jnp.exp(-0.5 * tin**2) / (2 * jnp.pi) ** 0.5))


def clip_norm(ctx, grad_out: Array, tin: Array) -> Array:
    norm = jnp.linalg.norm(grad_out)
    return grad_out * jnp.minimum(1.0 / jnp.maximum(norm, 1e-6), 1.0)


def dorefa(ctx, grad_out: Array, tin: Array) -> Array:
    t = jnp.tanh(tin)
    return grad_out * ((1.0 - t**2) / lax.stop_gradient(jnp.max(jnp.abs(t))))


def gumbel_softmax(ctx, grad_out: Array, tin: Array) -> Array:
    y = jax.nn.softmax(tin, axis=-1)
    return y * (grad_out - jnp.sum(grad_out * y, axis=-1, keepdims=True))


RULES = {
    "straight_through": lambda ctx, g, x: jnp.array(g),
    "deconvnet": lambda ctx, g, x: relu(g),
    "guided_backprop": lambda ctx, g, x: jax.nn.relu(g) * (x > 0).astype(g.dtype),
    "threshold_mask": threshold_mask,
    "half_open_window": half_open_window,
    "scaled_triangle": lambda ctx, g, x: g * (0.3 * relu(1.0 - jnp.absolute(x))),
    "superspike": lambda ctx, g, x: lax.div(g, lax.integer_pow(1.0 + 100.0 * lax.abs(x), 2)),
    "soft_sign": lambda ctx, g, x: g * (1.5 / (1.0 + jnp.fabs(3.0 * x)) ** 2),
    "sigmoid_slope": sigmoid_slope,
    "erf_slope": lambda ctx, g, x: g * (2.0 / jnp.pi**0.5 * jnp.exp(-jnp.square(x))),
    "slayer": lambda ctx, g, x: g * lax.exp(lax.neg(lax.abs(x))),
    "circle": circle,
    "s2nn": s2nn,
    "beta_smooth_relu": lambda ctx, g, x: g * lax.logistic(10.0 * x),
    "gelu_slope": gelu_slope,
    "clip_norm": clip_norm,
    "dorefa": dorefa,
    "gumbel_softmax": gumbel_softmax,
}
