# jax==0.10.2, edges: the derivative of `poch` by its first argument is NaN at 0, where it is gamma(m).
import jax
from jax.scipy.special import gamma, poch

slope = (poch(1e-2, 0.5) - poch(-1e-2, 0.5)) / 2e-2
assert abs(slope - gamma(0.5)) < 1e-2
assert bool(jax.numpy.isnan(jax.grad(poch)(0.0, 0.5)))
