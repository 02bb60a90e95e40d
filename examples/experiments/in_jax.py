"""What the experiments need of JAX; the names are those of `in_torch.py`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from task import Tensor, Update

import multigrad as xg

mean = jnp.mean
reshape = jnp.reshape
compiled = jax.jit
stopped = jax.lax.stop_gradient


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean()


def tensor(array) -> jax.Array:
    return jnp.asarray(array)


def array(tensor: jax.Array) -> np.ndarray:
    return np.asarray(tensor)


def make_step(loss: Callable[..., Tensor], update: Update):
    """Return `step(weights, kept, *batch)`, which gives both anew and the loss."""

    def step(weights, kept, *batch):
        value, gradients = jax.value_and_grad(loss)(weights, *batch)
        return *update(weights, gradients, kept), value

    return xg.jit(step, "jax")  # a schedule's number is an argument of it
