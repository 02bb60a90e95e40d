# optax==0.2.8, type: `projection_simplex` has no gradient with 64 bits enabled: the rule returns another dtype than the value has.
import jax
import jax.numpy as jnp
import optax

jax.config.update("jax_enable_x64", True)
x = jnp.array([0.3, -0.2, 0.1], jnp.float64)
optax.projections.projection_simplex(x)
for given in (x, x.astype(jnp.float32)):
    try:
        jax.grad(lambda v: optax.projections.projection_simplex(v)[0])(given)
    except TypeError:
        break
else:
    raise AssertionError("it is differentiated")
