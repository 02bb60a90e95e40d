# braintools==0.3.0, documentation: `q_pseudo_spike` has alpha + 1 where the paper (Herranz-Celotti and Rouat, 2022) has alpha - 1.
import jax
from braintools import surrogate

slope = float(jax.grad(lambda x: surrogate.q_pseudo_spike(x, alpha=2.0))(0.5))
assert abs(slope - (1 + 1 / 3) ** -2) < 1e-6
assert abs(slope - (1 + 1 / 1) ** -2) > 0.3
