"""One custom gradient on every framework that is installed: log(1 + exp(x)), whose derivative must
not overflow.

By the chain rule the gradient at 100 is inf / inf, which is NaN; the function says that it is 1.
Needs: multigrad; with [torch], [jax], [tensorflow] it runs there too
"""

from importlib.util import find_spec

import numpy as np

import multigrad as xg
from multigrad import xp


@xg.custom_gradient
def log1pexp(x):
    e = xp.exp(x)

    def grad(upstream):
        return upstream * (1 - 1 / (1 + e))

    return xp.log(1 + e), grad


def naive(x):
    return xp.log(1 + xp.exp(x))


POINTS = np.array([0.0, 1.0, 100.0], np.float32)


def make_tensor(framework: str, values: np.ndarray):
    """Return the framework's own tensor."""
    if framework == "torch":
        import torch

        return torch.tensor(values)
    if framework == "jax":
        import jax

        return jax.numpy.asarray(values)
    if framework == "tensorflow":
        import tensorflow as tf

        return tf.constant(values)
    return values


def compile_with(framework: str):
    """Return log1pexp compiled by the framework."""
    if framework == "torch":
        import torch

        return torch.compile(log1pexp, backend="aot_eager", fullgraph=True)
    if framework == "jax":
        import jax

        return jax.jit(log1pexp)
    if framework == "tensorflow":
        import tensorflow as tf

        return tf.function(log1pexp)
    return log1pexp


def main() -> None:
    for framework in ("numpy", "torch", "jax", "tensorflow"):
        if find_spec(framework) is None:
            continue
        x, ones = make_tensor(framework, POINTS), make_tensor(framework, np.ones_like(POINTS))
        for how, f in (
            ("naive", naive),
            ("eager", log1pexp),
            ("compiled", compile_with(framework)),
        ):
            _, pullback = xg.vjp(f, x)
            (gradient,) = pullback(ones)
            print(f"{framework:12}{how:10}", *(f"{float(g):.6f}" for g in gradient))
    print(xg.check(log1pexp, np.linspace(-3.0, 3.0, 7)))


if __name__ == "__main__":
    main()
