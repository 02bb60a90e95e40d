"""The rule of example 01 in JAX: it trains a network of step functions with optax, under `jax.jit`.

Needs: pip install 'multigrad-rules[jax]' optax scikit-learn
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import multigrad as xg
from multigrad import xp

heaviside = xg.activation("Heaviside")
optimizer = optax.adam(0.005)


@xg.register("noisy_threshold")
def noisy_threshold(ctx, grad_out, tin, t: float = 0.0, sigma: float = 0.1):
    """Pass the gradient where the input reached `t`, with Gaussian noise on all of it."""
    mask = 1.0 if tin is None else xp.astype(tin >= t, grad_out.dtype)
    return grad_out * mask + sigma * xp.randn_like(grad_out)


def predict(weights, images):
    return heaviside(images @ weights["hidden"]) @ weights["out"]


def mean_loss(weights, images, labels):
    logits = predict(weights, images)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@jax.jit
def step(weights, state, images, labels, key):
    # JAX has no global generator: a rule that draws gets a key, here a new one for each step.
    with xg.use("noisy_threshold", params={"t": -1.0, "sigma": 1e-5}, key=key):
        loss, gradients = jax.value_and_grad(mean_loss)(weights, images, labels)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(weights, updates), state, loss


def main() -> None:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.2, random_state=0
    )

    random = np.random.default_rng(0)
    weights = {
        "hidden": jnp.asarray(random.normal(0, 0.25, (64, 64)), jnp.float32),
        "out": jnp.asarray(random.normal(0, 0.125, (64, 10)), jnp.float32),
    }
    state = optimizer.init(weights)
    key = jax.random.key(0)
    for epoch in range(1, 11):
        order = random.permutation(len(train_x))
        for start in range(0, len(order) - 63, 64):
            batch = order[start : start + 64]
            key, step_key = jax.random.split(key)
            weights, state, loss = step(weights, state, train_x[batch], train_y[batch], step_key)
        accuracy = jnp.mean(predict(weights, test_x).argmax(axis=1) == test_y)
        print(f"epoch {epoch:2}  loss {loss:.3f}  test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
