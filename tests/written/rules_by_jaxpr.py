"""Rules in `jax.numpy` that substitution cannot see through, and jax can trace: their jaxpr is
imported.

Run on JAX's arrays as it is, each is its own oracle (see test_capture_routes.py).
"""

import jax
import jax.numpy as jnp
from jax import lax

from .helpers_in_jax import derivative


def true_derivative(ctx, grad_out, tin):
    return grad_out * jax.grad(lambda x: jnp.sum(jax.nn.softplus(x)))(tin)


def derivative_of_a_module(ctx, grad_out, tin):
    return grad_out * derivative(tin)


def pulled_back(ctx, grad_out, tin):
    _, pull = jax.vjp(lambda x: jnp.tanh(x) * jnp.linalg.norm(x), tin)
    return pull(grad_out)[0]


def pushed_forward(ctx, grad_out, tin):
    return jax.jvp(lambda x: jnp.exp(-x) + x**2, (tin,), (grad_out,))[1]


def mapped_over_rows(ctx, grad_out, tin):
    def normalized(row):
        return row / jnp.sum(jnp.abs(row))

    return grad_out * jax.vmap(normalized)(tin) + jax.vmap(jnp.cumsum, 1, 1)(grad_out)


def mapped_derivative(ctx, grad_out, tin, width: float = 1.5):
    slope = jax.vmap(jax.grad(lambda x: jax.nn.gelu(x) * jnp.exp(-jnp.abs(x) / width)))
    return grad_out * slope(tin.ravel()).reshape(tin.shape)


def mapped_products(ctx, grad_out, tin):
    return jax.vmap(lambda row: jnp.dot(row, tin.T) @ tin)(grad_out)


def vectorized(ctx, grad_out, tin):
    larger = jnp.vectorize(lambda a, b: jnp.where(a > b, a, b))
    return larger(grad_out, tin)


def branches_chosen_by_a_mask(ctx, grad_out, tin):
    inside = jnp.logical_and(jnp.isclose(tin, 1.0, atol=1.0), ~jnp.isnan(tin))
    return jnp.where(inside, lax.round(grad_out), lax.integer_pow(tin, 4) % 3.0)


def joined_and_cut(ctx, grad_out, tin):
    left, right = jnp.split(tin, 2, axis=1)
    rows = jnp.vstack([grad_out[:1], tin[1:]]) + jnp.pad(grad_out, ((0, 0), (1, 0)))[:, 1:]
    return rows * jnp.hstack([right, left]) + jnp.rot90(jnp.rot90(tin)) + jnp.fliplr(tin)


def limits_of_the_dtype(ctx, grad_out, tin):
    return grad_out + jnp.apply_along_axis(lambda x: x * jnp.finfo(x.dtype).eps * 1e6, 0, tin)


def made_whole(ctx, grad_out, tin):
    return jax.vmap(lambda row: jnp.ones(4, row.dtype) - jnp.eye(4, dtype=row.dtype)[0])(tin)
