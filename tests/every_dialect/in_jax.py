"""The rules of `formulas.py` as they are written in jax.numpy, jax.nn, jax.lax and jax.scipy."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.nn import relu
from jax.scipy.special import erf


def straight_through(ctx, grad_out: Array, tin: Array) -> Array:
    return jnp.array(grad_out)


def gradient_reversal(ctx, grad_out: Array, tin: Array) -> Array:
    return jnp.negative(grad_out)


def gradient_scale(ctx, grad_out: Array, tin: Array) -> Array:
    return jnp.multiply(grad_out, 0.25)


def clip_value(ctx, grad_out: Array, tin: Array) -> Array:
    return jnp.clip(grad_out, -0.5, 0.5)


def deconvnet(ctx, grad_out: Array, tin: Array) -> Array:
    return relu(grad_out)


def guided_backprop(ctx, grad_out: Array, tin: Array) -> Array:
    return jax.nn.relu(grad_out) * (tin > 0).astype(grad_out.dtype)


def relu_mask(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * jnp.greater(tin, 0).astype(grad_out.dtype)


def threshold_mask(ctx, grad_out: Array, tin: Array) -> Array:
    grad_out = grad_out.at[tin < 0.5].set(0.0)
    return jnp.where(jnp.isnan(tin), 0.0, grad_out)


def clipped_straight_through(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (jnp.abs(tin) <= 1.0)


def rectangular(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * jnp.logical_and(tin >= -0.5, tin <= 0.5)


def boxcar(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * jnp.where(jnp.abs(tin) < 1.0, 0.5, 0.0)


def half_open_window(ctx, grad_out: Array, tin: Array) -> Array:
    inside = (tin > -0.5) & (tin <= 2.0)
    return lax.select(inside, grad_out, jnp.zeros_like(grad_out))


def triangular(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * jnp.maximum(1.0 - jnp.abs(tin), 0.0)


def scaled_triangle(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (0.3 * relu(1.0 - jnp.absolute(tin)))


def fast_sigmoid(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out / jnp.square(1.0 + 25.0 * jnp.abs(tin))


def superspike(ctx, grad_out: Array, tin: Array) -> Array:
    return lax.div(grad_out, lax.integer_pow(1.0 + 100.0 * lax.abs(tin), 2))


def soft_sign(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (1.5 / (1.0 + jnp.fabs(3.0 * tin)) ** 2)


def arctan(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out / (1.0 + jnp.square(jnp.pi * tin))


def sigmoid_slope(ctx, grad_out: Array, tin: Array) -> Array:
    s = jax.nn.sigmoid(4.0 * tin)
    return grad_out * (4.0 * (s * (1.0 - s)))


def tanh_slope(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (1.0 - jnp.tanh(tin) ** 2)


def erf_slope(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (2.0 / jnp.pi**0.5 * jnp.exp(-jnp.square(tin)))


@functools.partial(jax.jit, static_argnums=(1, 2))
def normal(x: Array, center: float, sigma: float) -> Array:
    return jnp.exp(-0.5 * ((x - center) / sigma) ** 2) / (sigma * (2 * jnp.pi) ** 0.5)


def gaussian(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * normal(tin, 0.0, 0.5)


def multi_gaussian(ctx, grad_out: Array, tin: Array) -> Array:
    sides = [0.15 * normal(tin, center, 3.0) for center in (0.5, -0.5)]
    return grad_out * (1.15 * normal(tin, 0.0, 0.5) - sides[0] - sides[1])


def exponential(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * (2.0 * jnp.exp(-2.0 * jnp.abs(tin)))


def slayer(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * lax.exp(lax.neg(lax.abs(tin)))


def circle(ctx, grad_out: Array, tin: Array) -> Array:
    r = 4.0 + jnp.square(tin)
    return grad_out * (8.0 / (r * lax.sqrt(r)))


def s2nn(ctx, grad_out: Array, tin: Array) -> Array:
    s = jax.nn.sigmoid(4.0 * tin)
    return grad_out * jnp.where(tin < 0, 4.0 * (s * (1.0 - s)), 1.0 / (tin + 1.0))


def log_tailed(ctx, grad_out: Array, tin: Array) -> Array:
    slope = jnp.select([tin > 1, tin > 0], [jnp.reciprocal(tin), jnp.ones_like(tin)], tin - tin)
    return grad_out * slope


def sign_log_abs(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out / jnp.add(1.0, jnp.abs(tin))


def piecewise_leaky_relu(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * jnp.where(jnp.abs(tin) < 1.0, 0.5, 0.01)


def q_pseudo_spike(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * jnp.power(1.0 + jnp.abs(tin), -3.0)


def leaky_k_relu(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * jnp.where(tin >= 0, 1.0, 0.1)


def approx_sign(ctx, grad_out: Array, tin: Array) -> Array:
    x = jnp.abs(tin)
    return grad_out * jnp.where(x <= 1.0, 2.0 - 2.0 * x, 0.0)


def fake_numerical(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * jnp.minimum(1.0 / jnp.abs(tin), 0.3)


def beta_smooth_relu(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * lax.logistic(10.0 * tin)


def gelu_slope(ctx, grad_out: Array, tin: Array) -> Array:
    inside = 0.5 * (1.0 + erf(tin * 0.5**0.5))
    return grad_out * (inside + tin * (jnp.exp(-0.5 * tin**2) / (2 * jnp.pi) ** 0.5))


def clamp_with_grad(ctx, grad_out: Array, tin: Array) -> Array:
    outward = ((tin > 1) & (grad_out < 0)) | ((tin < -1) & (grad_out > 0))
    return jnp.where(outward, 0.0, grad_out)


def learned_step(ctx, grad_out: Array, tin: Array) -> Array:
    step = jnp.rint(tin / 0.5)
    return jnp.where(step == jnp.clip(step, -4, 3), grad_out, 0.0)


def clip_norm(ctx, grad_out: Array, tin: Array) -> Array:
    norm = jnp.linalg.norm(grad_out)
    return grad_out * jnp.minimum(1.0 / jnp.maximum(norm, 1e-6), 1.0)


def normalize(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out / (jnp.sqrt(jnp.sum(jnp.square(grad_out))) + 1e-3)


def clip_rms(ctx, grad_out: Array, tin: Array) -> Array:
    rms = jnp.sqrt(jnp.mean(jnp.square(grad_out)))
    return grad_out / jnp.maximum(rms / 0.5, 1.0)


def centralize(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out - jnp.mean(grad_out, axis=-1, keepdims=True)


def magnitude_aware_sign(ctx, grad_out: Array, tin: Array) -> Array:
    return grad_out * jnp.abs(tin).mean(axis=0, keepdims=True) * (jnp.abs(tin) <= 1.0)


def dorefa(ctx, grad_out: Array, tin: Array) -> Array:
    t = jnp.tanh(tin)
    return grad_out * ((1.0 - t**2) / lax.stop_gradient(jnp.max(jnp.abs(t))))


def gumbel_softmax(ctx, grad_out: Array, tin: Array) -> Array:
    y = jax.nn.softmax(tin, axis=-1)
    return y * (grad_out - jnp.sum(grad_out * y, axis=-1, keepdims=True))
