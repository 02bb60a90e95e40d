"""A rule in TensorFlow: `tf.GradientTape` sees the surrogate gradient, eager and in a compiled
step.

Needs: pip install 'multigrad-rules[tensorflow]' scikit-learn
"""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import multigrad as xg

heaviside = xg.activation("Heaviside")


def show_gradients() -> None:
    x = tf.linspace(-1.0, 1.0, 5)
    for rule in ("rectangular", "triangular", "arctan"):
        with xg.use(rule), tf.GradientTape() as tape:
            tape.watch(x)
            y = heaviside(x)
        print(f"{rule:<12}", np.round(tape.gradient(y, x).numpy(), 3))


def predict(weights: list[tf.Variable], images: tf.Tensor) -> tf.Tensor:
    hidden, out = weights
    return heaviside(images @ hidden) @ out


def step(weights: list[tf.Variable], images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        logits = predict(weights, images)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_mean(losses)
    for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
        weight.assign_sub(0.5 * gradient)
    return loss


def train(rule: str, compiled_step) -> None:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.2, random_state=0
    )
    random = np.random.default_rng(0)
    weights = [
        tf.Variable(random.normal(0, 0.25, shape).astype(np.float32))
        for shape in [(64, 64), (64, 10)]
    ]
    with xg.use(rule):
        for _ in range(10):
            order = random.permutation(len(train_x))
            for start in range(0, len(order) - 63, 64):
                batch = order[start : start + 64]
                loss = compiled_step(
                    weights, tf.constant(train_x[batch]), tf.constant(train_y[batch])
                )
    accuracy = np.mean(predict(weights, test_x).numpy().argmax(axis=1) == test_y)
    print(f"{rule:<12} loss {loss.numpy():.3f}  test accuracy {accuracy:.3f}")


def main() -> None:
    print("gradient of Heaviside at -1, -0.5, 0, 0.5, 1")
    show_gradients()
    # tf.function compiled by xg.jit: another rule gets its own trace, and no trace is ever stale.
    compiled_step = xg.jit(step, "tensorflow")
    print("ten epochs on the digits, one compiled step for all rules")
    for rule in ("rectangular", "triangular", "arctan"):
        train(rule, compiled_step)


if __name__ == "__main__":
    main()
