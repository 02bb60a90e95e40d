"""Known silent faults of jax: see `multigrad.engine.backend.differences.Fault`."""

from __future__ import annotations

from multigrad.engine.backend.differences import Fault

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
    Fault(
        "max pooling at the border",
        "where a window of max pooling reaches over the border, the tangent is that of another one "
        "of equal elements than the gradient: second derivatives are wrong there",
        "pad with -inf before the pooling, or avoid equal elements",
        """\
import jax
from jax import lax
from jax import numpy as jnp
def found(wrap):
    pool = wrap(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (3, 3), (2, 2), "SAME"))
    x = jnp.array([[0.0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    v = jnp.arange(16.0).reshape(4, 4)
    tangent = jax.jvp(pool, (x,), (v,))[1]
    _, pull = jax.vjp(pool, x)
    return float(tangent.sum()) != float((pull(jnp.ones_like(tangent))[0] * v).sum())
""",
    ),
    Fault(
        "custom_jvp in a scan",
        "a second derivative through jax.lax.scan or fori_loop has that of the plain code for the "
        "output of a jax.custom_jvp function",
        "use jax.custom_vjp, or multigrad's function of the same rule",
        """\
import jax
from jax import numpy as jnp
@jax.custom_jvp
def step(x):
    return jnp.where(x > 0, 1.0, 0.0)
@step.defjvp
def rule(primals, tangents):
    return step(*primals), tangents[0] / (1 + primals[0] ** 2)
def found(wrap):
    spike = wrap(step)
    loss = lambda x: spike(x) * x
    loop = lambda x: jax.lax.scan(lambda c, _: (loss(c), None), x, None, 1)[0]
    first, second = (jax.grad(jax.grad(f))(0.5) for f in (loss, loop))
    return abs(float(first - second)) > 1e-3
""",
    ),
)  # fmt: skip
