"""A user's own module of helpers written in `jax.numpy`, as rules import them (see
test_capture_routes.py).
"""

import jax
import jax.numpy as jnp

SHARPNESS = 3.0
TABLE = [jnp.tanh, jnp.sin]
derivative = jax.grad(lambda x: jnp.sum(x**3))


def soft(x, sharpness=None, curve=jax.nn.sigmoid):
    return curve(x * (SHARPNESS if sharpness is None else max(sharpness, 0.1)))


@jax.jit
def jitted(x):
    return soft(x) * jnp.float32(0.5).astype(x.dtype)


class Curve:
    """A user's class: its methods, static or not, are written in jax.numpy."""

    def __init__(self, x):
        self.x = x
        self.function = jnp.cos

    @staticmethod
    def bell(x):
        return jnp.exp(-jnp.square(x))

    @property
    def wave(self):
        return self.function(self.x)

    def value(self):
        return self.bell(self.x) + self.wave
