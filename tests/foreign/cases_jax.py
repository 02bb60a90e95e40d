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


def positive_definite(x: jax.Array) -> jax.Array:
    """Return a matrix that has a Cholesky factor."""
    return x @ x.T + 3.0 * jnp.eye(x.shape[0], dtype=x.dtype)


def ott_sqrtm(x: jax.Array) -> jax.Array:
    """Return the square root of a matrix, by Sylvester's equation in the gradient."""
    from ott.math.matrix_square_root import sqrtm_only

    return sqrtm_only(positive_definite(x), threshold=1e-5, max_iterations=60)


def ott_inv_sqrtm(x: jax.Array) -> jax.Array:
    """Return the inverse of it."""
    from ott.math.matrix_square_root import inv_sqrtm_only

    return inv_sqrtm_only(positive_definite(x), threshold=1e-5, max_iterations=60)


def numpyro_power_law(x: jax.Array) -> jax.Array:
    """Return a density whose derivative by the exponent is stable at -1."""
    from numpyro.distributions import DoublyTruncatedPowerLaw

    return DoublyTruncatedPowerLaw(-0.5, 0.01, 2.0).log_prob(x)


def numpyro_power_law_cdf(x: jax.Array) -> jax.Array:
    """Return its cumulative probability."""
    from numpyro.distributions import DoublyTruncatedPowerLaw

    return DoublyTruncatedPowerLaw(-0.5, 0.01, 2.0).cdf(x)


def numpyro_power_law_icdf(x: jax.Array) -> jax.Array:
    """Return its quantiles."""
    from numpyro.distributions import DoublyTruncatedPowerLaw

    return DoublyTruncatedPowerLaw(-0.5, 0.01, 2.0).icdf(x)


def optimistix_root(a: jax.Array) -> jax.Array:
    """Return the root of x^3 + x = a, by the implicit function theorem."""
    import optimistix

    solver = optimistix.Newton(rtol=1e-7, atol=1e-7)
    return optimistix.root_find(lambda x, a: x**3 + x - a, solver, jnp.zeros_like(a), a).value


def brainstate_embedding(x: jax.Array) -> jax.Array:
    """Look rows up."""
    import brainstate

    return brainstate.nn.Embedding(6, 3, embedding_init=x)(jnp.array([0, 2, 2, 5]))


def jaxopt_perturbed_max(x: jax.Array) -> jax.Array:
    """Return a smoothed indicator of the largest number, drawn with a fixed key."""
    from jaxopt import perturbations

    make = perturbations.make_perturbed_argmax
    argmax = make(lambda v: jax.nn.one_hot(jnp.argmax(v), v.shape[-1], dtype=v.dtype), 200, 0.5)
    return argmax(x, jax.random.PRNGKey(0))
