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
