"""Objects and arguments of jax packages that a factory makes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

TWOS = np.full((4, 6), 2.5, np.float32)
FLOAT32, FLOAT8 = jnp.float32, jnp.float8_e4m3fn
DIMENSION_NUMBERS = (((1,), (0,)), ((), ()))


def spyx_superspike(x: jax.Array) -> jax.Array:
    """Spike by a surrogate that is made in the function."""
    from spyx import axn

    return axn.superspike(25.0)(x)


def spyx_arctan(x: jax.Array) -> jax.Array:
    """Spike by another one."""
    from spyx import axn

    return axn.arctan(2.0)(x) * x


def spyx_boxcar(x: jax.Array) -> jax.Array:
    """Spike by another one."""
    from spyx import axn

    return axn.boxcar(2.0)(jnp.tanh(x))


def spyx_triangular(x: jax.Array) -> jax.Array:
    """Spike by another one."""
    from spyx import axn

    return axn.triangular(2.0)(x)


def spyx_tanh(x: jax.Array) -> jax.Array:
    """Spike by another one."""
    from spyx import axn

    return axn.tanh(1.0)(x)


def optax_simplex(x: jax.Array) -> jax.Array:
    """Project, and weigh."""
    import optax

    return optax.projections.projection_simplex(2.0 * x, 1.0) * x


def rlax_clipped(x: jax.Array) -> jax.Array:
    """Clip the gradient of a part."""
    import rlax

    return rlax.clip_gradient(jnp.tanh(x), -0.1, 0.1) * x


def jitted_surrogate(x: jax.Array) -> jax.Array:
    """Spike by a custom gradient within `jax.jit`."""

    @jax.jit
    @jax.custom_gradient
    def spike(v: jax.Array) -> tuple[jax.Array, object]:
        return (v > 0).astype(v.dtype), lambda g: g / (1.0 + jnp.abs(v)) ** 2

    return spike(x - 0.1) * x


def flax_module(x: jax.Array) -> jax.Array:
    """Apply flax's activations in a row."""
    from flax import nnx

    return nnx.silu(nnx.relu(x) - nnx.hard_tanh(x))


def distrax_power(x: jax.Array) -> jax.Array:
    """Apply functions whose derivatives at zero are their own."""
    from distrax._src.utils import math

    return math.multiply_no_nan(math.power_no_nan(x, 2.0 * x), x)
