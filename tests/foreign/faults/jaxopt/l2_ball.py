# jaxopt==0.8.5, far numbers: the gradient of `projection_l2_ball` is NaN at 0, where it is the identity.
import jax
import jax.numpy as jnp
from jaxopt.projection import projection_l2_ball

project = lambda x: projection_l2_ball(x)[0]
assert float(jax.grad(project)(jnp.array([0.5, 0.0]))[0]) == 1.0
assert bool(jnp.isnan(jax.grad(project)(jnp.zeros(2))[0]))
