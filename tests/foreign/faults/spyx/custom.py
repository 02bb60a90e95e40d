# spyx==1.0.0, documentation: `custom()` multiplies the gradient by its input; its documentation calls it a straight-through estimator.
import jax
from spyx import axn

assert float(jax.grad(axn.custom())(0.25)) == 0.25
