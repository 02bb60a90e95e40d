"""A flax network of binary neurons, trained with optax: one rule for the neurons, one for the
weights' gradients.

The neurons fire or do not, so `triangular` stands in for their derivative. `apply_rule` puts
another rule between the gradients and Adam: it clips the norm of each weight, to a bound that
shrinks as training goes on.

Needs: pip install 'multigrad-rules[jax]' flax optax scikit-learn
"""

import jax
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import multigrad as xg
from multigrad.optax import apply_rule

EPOCHS, BATCH = 10, 64


class BinaryNetwork(nnx.Module):
    """Two layers of neurons that send 0 or 1."""

    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(64, 128, rngs=rngs)
        self.second = nnx.Linear(128, 64, rngs=rngs)
        self.out = nnx.Linear(64, 10, rngs=rngs)
        self.fire = xg.activation("Heaviside", rule="triangular", params={"width": 2.0})

    def __call__(self, images):
        return self.out(self.fire(self.second(self.fire(self.first(images)))))


def mean_loss(network, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(network(images), labels).mean()


@nnx.jit
def step(network, optimizer, images, labels):
    loss, gradients = nnx.value_and_grad(mean_loss)(network, images, labels)
    optimizer.update(network, gradients)
    return loss


@nnx.jit
def score(network, images, labels):
    return (network(images).argmax(axis=1) == labels).mean()


def main() -> None:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.2, random_state=0
    )

    network = BinaryNetwork(nnx.Rngs(0))
    bound = optax.linear_schedule(0.5, 0.05, EPOCHS * (len(train_x) // BATCH))
    rules = optax.chain(apply_rule("clip_norm", {"max_norm": bound}), optax.adam(0.005))
    optimizer = nnx.Optimizer(network, rules, wrt=nnx.Param)

    random = np.random.default_rng(0)
    for epoch in range(1, EPOCHS + 1):
        order = random.permutation(len(train_x))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            batch = order[start : start + BATCH]
            loss = step(network, optimizer, train_x[batch], train_y[batch])
        accuracy = score(network, test_x, test_y)
        print(f"epoch {epoch:2}  loss {loss:.3f}  test accuracy {accuracy:.3f}")
    assert accuracy > 0.9, "the network has not learned"

    sent = network.fire(network.first(test_x))
    print(f"what the first layer sends: {sorted(set(np.unique(sent).tolist()))}")
    count = optimizer.opt_state[0].count
    print(f"updates that saw the rule: {int(jax.device_get(count[...]))}")


if __name__ == "__main__":
    main()
