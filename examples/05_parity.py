"""One rule, the same input and cotangent in every installed framework: how far apart are the
gradients?

Needs: pip install multigrad-rules, and as many of torch, jax, tensorflow as you like
"""

from collections.abc import Callable

import numpy as np

import multigrad as xg

FORWARD = "Heaviside"
RULES = ["triangular", "arctan", "fast_sigmoid", "sigmoid_surrogate", "clip_norm", "full_jam"]
KEY = 7


def numpy_gradient(rule: str, x: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
    # On NumPy there is no autodiff to attach to: a rule is called as the function it is.
    return xg.get(rule)(None, cotangent, x, key=KEY)


def torch_gradient(rule: str, x: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
    import torch

    primal = torch.tensor(x, requires_grad=True)
    with xg.use(rule, key=KEY):
        y = xg.activation(FORWARD)(primal)
    y.backward(torch.tensor(cotangent))
    return primal.grad.numpy()


def jax_gradient(rule: str, x: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
    import jax

    with xg.use(rule, key=KEY):
        _, pullback = jax.vjp(xg.activation(FORWARD), jax.numpy.asarray(x))
    (gradient,) = pullback(jax.numpy.asarray(cotangent))
    return np.asarray(gradient)


def tensorflow_gradient(rule: str, x: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
    import tensorflow as tf

    primal = tf.constant(x)
    with xg.use(rule, key=KEY), tf.GradientTape() as tape:
        tape.watch(primal)
        y = xg.activation(FORWARD)(primal)
    return tape.gradient(y, primal, output_gradients=tf.constant(cotangent)).numpy()


GRADIENTS: dict[str, Callable[[str, np.ndarray, np.ndarray], np.ndarray]] = {
    "torch": torch_gradient,
    "jax": jax_gradient,
    "tensorflow": tensorflow_gradient,
}


def main() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(64, 64)).astype(np.float32)
    cotangent = random.normal(size=(64, 64)).astype(np.float32)

    names = [row.name for row in xg.backends() if row.installed and row.name in GRADIENTS]
    print("largest difference from NumPy's gradient, relative to its largest element (float32)")
    print(f"{'':<18}", *(f"{name:>12}" for name in names))
    for rule in RULES:
        expected = numpy_gradient(rule, x, cotangent)
        largest = np.abs(expected).max()
        errors = [np.abs(GRADIENTS[name](rule, x, cotangent) - expected).max() for name in names]
        print(f"{rule:<18}", *(f"{error / largest:12.1e}" for error in errors))


if __name__ == "__main__":
    main()
