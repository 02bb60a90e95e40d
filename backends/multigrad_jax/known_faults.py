"""Known silent faults of jax: see `multigrad.backend.differences.Fault`."""

from __future__ import annotations

from multigrad.backend.differences import Fault

KNOWN_FAULTS = (
    Fault(
        "poch at zero",
        "the gradient of jax.scipy.special.poch by its first argument is NaN at 0, where it is "
        "gamma(m)",
        "keep the argument away from 0",
        """\
import jax
def found(wrap):
    poch = wrap(jax.scipy.special.poch)
    return bool(jax.numpy.isnan(jax.grad(poch)(0.0, 0.5)))
""",
    ),
)  # fmt: skip
