"""Hand-written rivals in JAX: `jax.custom_vjp`, measured under `jax.jit`.

XLA fuses what either writes into the same loops, so that mostly what is kept for backward differs:
`plain` keeps x, `hand-written` a mask where that is enough, and the cheaper of two equal formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

Tensor: TypeAlias = Any

A, B = -0.5, 0.5
WIDTH, ALPHA = 1.0, 2.0
MAX_NORM, EPS = 1.0, 1e-12


def step(x: Tensor) -> Tensor:
    """The forward of a spiking unit."""
    return (x > 0).astype(x.dtype)


def keep_input(x: Tensor) -> Tensor:
    """Keep x."""
    return x


def keep_window(x: Tensor) -> Tensor:
    """Keep a byte per element."""
    return (x >= A) & (x <= B)


def keep_positive(x: Tensor) -> Tensor:
    """Keep a byte per element."""
    return x > 0


def keep_nothing(x: Tensor) -> None:
    """Keep nothing."""
    return


def build(
    forward: Callable[[Tensor], Tensor],
    keep: Callable[[Tensor], Any],
    pull: Callable[[Any, Tensor], Tensor],
) -> Callable[[Tensor], Tensor]:
    """Return a function with the custom gradient `pull(keep(x), grad_out)`."""

    @jax.custom_vjp
    def function(x: Tensor) -> Tensor:
        return forward(x)

    def run_forward(x: Tensor) -> tuple[Tensor, Any]:
        return forward(x), keep(x)

    def run_backward(kept: Any, grad_out: Tensor) -> tuple[Tensor]:
        return (pull(kept, grad_out),)

    function.defvjp(run_forward, run_backward)
    return function


def plain_triangular(x: Tensor, grad_out: Tensor) -> Tensor:
    """The formula as it stands."""
    return grad_out * jnp.maximum(1 - jnp.abs(x) / WIDTH, 0)


def triangular(x: Tensor, grad_out: Tensor) -> Tensor:
    """A product for the division, which XLA may not replace by itself."""
    return grad_out * jnp.maximum(1 - jnp.abs(x) * (1 / WIDTH), 0)


def plain_arctan(x: Tensor, grad_out: Tensor) -> Tensor:
    """The formula as it stands."""
    return grad_out * (ALPHA / 2 / (1 + (math.pi / 2 * ALPHA * x) ** 2))


def arctan(x: Tensor, grad_out: Tensor) -> Tensor:
    """One division and two products fewer."""
    return grad_out / (2 / ALPHA + (2 / ALPHA) * (math.pi / 2 * ALPHA) ** 2 * (x * x))


def plain_rectangular(x: Tensor, grad_out: Tensor) -> Tensor:
    """Asks for the window in backward."""
    return grad_out * ((x >= A) & (x <= B))


def plain_relu_derivative(x: Tensor, grad_out: Tensor) -> Tensor:
    """Compares in backward."""
    return grad_out * (x > 0)


def mask(kept: Tensor, grad_out: Tensor) -> Tensor:
    """The product with a mask."""
    return grad_out * kept


def plain_clip_norm(kept: None, grad_out: Tensor) -> Tensor:
    """Asks JAX for the norm."""
    norm = jnp.linalg.norm(grad_out.reshape(-1))
    return grad_out * jnp.minimum(MAX_NORM / jnp.maximum(norm, EPS), 1)


def clip_norm(kept: None, grad_out: Tensor) -> Tensor:
    """Takes the norm by one dot product, whose kernel sums in vectors."""
    norm = jnp.sqrt(jnp.vdot(grad_out, grad_out))
    return grad_out * jnp.minimum(MAX_NORM / jnp.maximum(norm, EPS), 1)


RIVALS = {
    ("Heaviside", "triangular"): {
        "plain": build(step, keep_input, plain_triangular),
        "hand-written": build(step, keep_input, triangular),
    },
    ("ReLU", "rectangular"): {
        "plain": build(jax.nn.relu, keep_input, plain_rectangular),
        "hand-written": build(jax.nn.relu, keep_window, mask),
    },
    ("Heaviside", "rectangular"): {
        "plain": build(step, keep_input, plain_rectangular),
        "hand-written": build(step, keep_window, mask),
    },
    ("Heaviside", "arctan"): {
        "plain": build(step, keep_input, plain_arctan),
        "hand-written": build(step, keep_input, arctan),
    },
    ("ReLU", "d(ReLU)"): {
        "plain": build(jax.nn.relu, keep_input, plain_relu_derivative),
        "hand-written": build(jax.nn.relu, keep_positive, mask),
    },
    ("Linear", "clip_norm"): {
        "plain": build(keep_input, keep_nothing, plain_clip_norm),
        "hand-written": build(keep_input, keep_nothing, clip_norm),
    },
}
