# spyx==1.0.0, documentation: the edges of `boxcar` do not belong to it, where its documentation has |x| <= width / 2.
import jax
from spyx import axn

assert float(jax.grad(axn.boxcar(width=2.0, height=0.5))(1.0)) == 0.0
