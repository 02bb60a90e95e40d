"""An Equinox network that rounds its activations, trained with optax.

`jnp.round` has no gradient; `override` returns the loss with a straight-through estimator under it,
and `apply_rule` clips the gradients between `eqx.filter_grad` and Adam.

Needs: pip install 'multigrad-rules[jax]' equinox optax scikit-learn
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from digits import as_arrays

import multigrad as xg
from multigrad.optax import apply_rule

EPOCHS, BATCH, LEVELS = 5, 64, 3


class Quantized(eqx.Module):
    """Activations in 4 levels between 0 and 1; it knows nothing of multigrad."""

    first: eqx.nn.Linear
    second: eqx.nn.Linear
    out: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.first = eqx.nn.Linear(64, 128, key=keys[0])
        self.second = eqx.nn.Linear(128, 64, key=keys[1])
        self.out = eqx.nn.Linear(64, 10, key=keys[2])

    def __call__(self, image):
        hidden = self.quantize(self.first(image))
        return self.out(self.quantize(self.second(hidden)))

    def quantize(self, x):
        return jnp.round(jnp.clip(x, 0, 1) * LEVELS) / LEVELS


def mean_loss(network, images, labels):
    logits = jax.vmap(network)(images)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def train(loss, data):
    """Return the trained network, and how far its first layer moved."""
    network = start = Quantized(jax.random.key(0))
    clipped = apply_rule("clip_norm", params={"max_norm": 0.1})
    optimizer = optax.chain(clipped, optax.adam(2e-3))
    state = optimizer.init(eqx.filter(network, eqx.is_array))

    @eqx.filter_jit
    def step(network, state, images, labels):
        gradients = eqx.filter_grad(loss)(network, images, labels)
        updates, state = optimizer.update(gradients, state)
        return eqx.apply_updates(network, updates), state

    images, labels = data
    order = np.random.default_rng(0)
    for _ in range(EPOCHS):
        rows = order.permutation(len(images))
        for begin in range(0, len(rows) - BATCH + 1, BATCH):
            batch = rows[begin : begin + BATCH]
            network, state = step(network, state, images[batch], labels[batch])
    return network, jnp.abs(network.first.weight - start.first.weight).max()


def main() -> None:
    data, (images, labels) = as_arrays()
    rounded = {"round": "straight_through"}
    for name, loss in (("False", mean_loss), ("True ", xg.override(mean_loss, rounded))):
        network, moved = train(loss, data)
        accuracy = (jax.vmap(network)(images).argmax(1) == labels).mean()
        print(f"rules {name}: accuracy {accuracy:.4f}, first layer moved by {moved:.4f}")


if __name__ == "__main__":
    main()
