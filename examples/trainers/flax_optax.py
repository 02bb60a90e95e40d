"""A flax network of binary neurons, trained with optax: the rule is put on a function that exists.

`jnp.sign` has no gradient. `override` returns the loss with a straight-through estimator under it;
what comes back is a function like any other, here under `nnx.value_and_grad` and `nnx.jit`.

Needs: pip install 'multigrad-rules[jax]' flax optax scikit-learn
"""

import jax.numpy as jnp
import numpy as np
import optax
from digits import as_arrays
from flax import nnx

import multigrad as xg

EPOCHS, BATCH = 5, 64


class BinaryNetwork(nnx.Module):
    """Two layers of neurons that send -1 or 1; it knows nothing of multigrad."""

    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(64, 128, rngs=rngs)
        self.second = nnx.Linear(128, 64, rngs=rngs)
        self.out = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, images):
        return self.out(jnp.sign(self.second(jnp.sign(self.first(images)))))


def mean_loss(network, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(network(images), labels).mean()


def train(loss, data):
    """Return the trained network, and how far its first layer moved."""
    network = BinaryNetwork(nnx.Rngs(0))
    before = np.asarray(network.first.kernel[...])
    optimizer = nnx.Optimizer(network, optax.adam(2e-3), wrt=nnx.Param)

    @nnx.jit
    def step(network, optimizer, images, labels):
        value, gradients = nnx.value_and_grad(loss)(network, images, labels)
        optimizer.update(network, gradients)
        return value

    images, labels = data
    order = np.random.default_rng(0)
    for _ in range(EPOCHS):
        rows = order.permutation(len(images))
        for start in range(0, len(rows) - BATCH + 1, BATCH):
            batch = rows[start : start + BATCH]
            step(network, optimizer, images[batch], labels[batch])
    return network, np.abs(np.asarray(network.first.kernel[...]) - before).max()


def main() -> None:
    data, (images, labels) = as_arrays()
    rule = xg.get("rectangular").with_params(a=-1.0, b=1.0)
    for name, loss in (("False", mean_loss), ("True ", xg.override(mean_loss, {jnp.sign: rule}))):
        network, moved = train(loss, data)
        accuracy = (network(images).argmax(1) == labels).mean()
        print(f"rules {name}: accuracy {accuracy:.4f}, first layer moved by {moved:.4f}")


if __name__ == "__main__":
    main()
