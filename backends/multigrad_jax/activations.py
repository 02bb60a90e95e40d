"""JAX's rows of the activations: op to callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from multigrad.ir import ops
from multigrad.ir.activation_meaning import SELU_ALPHA, SELU_SCALE
from multigrad.ir.ops import Op

from .elementwise import accumulated, clip, log1p, widened

Tensor = Any


def sigmoid(x: Tensor) -> Tensor:
    # XLA's 1 / (1 + exp(-x)) overflows in float16, and is 0, from -11 down.
    return jax.nn.sigmoid(x.astype(jnp.float32) if x.dtype == jnp.float16 else x).astype(x.dtype)


@widened
def log_sigmoid(x: Tensor) -> Tensor:
    return jax.nn.log_sigmoid(x)


@widened
def logit(x: Tensor) -> Tensor:
    return jnp.log(x) - log1p(-x)


def heaviside(x: Tensor) -> Tensor:
    return (x > 0).astype(x.dtype)


def relu6(x: Tensor) -> Tensor:
    return jax.nn.relu6(x)


def leaky_relu(x: Tensor, *, slope: float) -> Tensor:
    return jax.nn.leaky_relu(x, slope)


def elu(x: Tensor, *, alpha: float) -> Tensor:
    return jax.nn.elu(x, alpha)


@widened
def celu(x: Tensor, *, alpha: float) -> Tensor:
    return jnp.where(x > 0, x, alpha * jnp.expm1(jnp.minimum(x, 0.0) / alpha))


@widened
def selu(x: Tensor) -> Tensor:
    below = SELU_SCALE * SELU_ALPHA * jnp.expm1(jnp.minimum(x, 0.0))
    return jnp.where(x > 0, SELU_SCALE * x, below)


def gelu(x: Tensor, *, approximate: bool) -> Tensor:
    return jax.nn.gelu(accumulated(x), approximate=approximate).astype(x.dtype)


@widened
def mish(x: Tensor) -> Tensor:
    return x * jnp.tanh(jax.nn.softplus(x))


@widened
def squareplus(x: Tensor, *, b: float) -> Tensor:
    # The square is not formed, and below zero the two terms would cancel. XLA sums 0.5 x and 0.5 root before it
    # halves, beyond the range: so each is halved where it is made.
    half = 0.5 * x
    root = jnp.hypot(half, 0.5 * b**0.5)
    # Below zero half of the smallest normal number would be taken for zero, and 0 / 0 for b = 0.
    return jnp.where(x >= 0, half + root, 0.5 * b / (jnp.abs(x) + 2.0 * root))


@widened
def sparse_plus(x: Tensor) -> Tensor:
    inside = clip(x, -1.0, 1.0) + 1.0
    return jnp.where(x >= 1.0, x, 0.25 * inside * inside)


@widened
def sparse_sigmoid(x: Tensor) -> Tensor:
    return 0.5 * (clip(x, -1.0, 1.0) + 1.0)


@widened
def soft_sign(x: Tensor) -> Tensor:
    return x / (1.0 + jnp.abs(x))


@widened
def tanh_shrink(x: Tensor) -> Tensor:
    return x - jnp.tanh(x)


@widened
def soft_shrink(x: Tensor, *, lambd: float) -> Tensor:
    inside = (x >= -lambd) & (x <= lambd)
    return jnp.where(inside, 0.0, x - jnp.copysign(lambd, x))


@widened
def hard_shrink(x: Tensor, *, lambd: float) -> Tensor:
    return jnp.where((x >= -lambd) & (x <= lambd), 0.0, x)


def threshold(x: Tensor, *, threshold: float, default: float) -> Tensor:
    return jnp.where(x <= threshold, default, x)


def hard_tanh(x: Tensor, *, min: float, max: float) -> Tensor:
    return clip(x, min, max)


@widened
def hard_sigmoid(x: Tensor) -> Tensor:
    return clip(x + 3.0, 0.0, 6.0) / 6.0


@widened
def hard_silu(x: Tensor) -> Tensor:
    return x * hard_sigmoid(x)


OPS: dict[Op, Callable[..., Any]] = {
    ops.SIGMOID: sigmoid,
    ops.LOG_SIGMOID: log_sigmoid,
    ops.LOGIT: logit,
    ops.RELU: jax.nn.relu,
    ops.RELU6: relu6,
    ops.LEAKY_RELU: leaky_relu,
    ops.ELU: elu,
    ops.CELU: celu,
    ops.SELU: selu,
    ops.GELU: gelu,
    ops.SILU: jax.nn.silu,
    ops.MISH: mish,
    ops.SOFTPLUS: jax.nn.softplus,
    ops.SQUAREPLUS: squareplus,
    ops.SPARSE_PLUS: sparse_plus,
    ops.SPARSE_SIGMOID: sparse_sigmoid,
    ops.SOFT_SIGN: soft_sign,
    ops.TANH_SHRINK: tanh_shrink,
    ops.SOFT_SHRINK: soft_shrink,
    ops.HARD_SHRINK: hard_shrink,
    ops.THRESHOLD: threshold,
    ops.HARD_TANH: hard_tanh,
    ops.HARD_SIGMOID: hard_sigmoid,
    ops.HARD_SILU: hard_silu,
    ops.HEAVISIDE: heaviside,
}
