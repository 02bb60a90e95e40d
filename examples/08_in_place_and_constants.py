"""A rule in torch style, with writes into tensors, constants and a loop, run in every installed
framework.

Each write makes a new value in the captured graph, so that frameworks without in-place updates run
it too, and the gradient that came in stays as it was. Needs: pip install 'multigrad-rules[torch]',
and as many of jax, tensorflow as you like
"""

from collections.abc import Callable

import numpy as np
import torch

import multigrad as xg

TAPS = torch.tensor([0.5, 0.3, 0.2])  # a constant of the graph, in the input's dtype


@xg.register("echo")
def echo(ctx, grad_out, tin, damping: float = 0.9):
    grad_in = grad_out.clone()
    grad_in[tin < 0] = 0  # by a mask
    grad_in[:, -1] = 1.0  # by an index
    grad_in.mul_(damping)
    echoes = torch.zeros_like(grad_in)
    for delay in range(3):  # unrolled
        echoes += TAPS[delay] * torch.roll(grad_in, delay, dims=1)
    echoes[:, 0] -= echoes.mean(dim=1)
    return echoes.clamp_(-1.0, 1.0)


def numpy_gradient(x: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
    # On NumPy there is no autodiff to attach to: a rule is called as the function it is.
    return echo(None, cotangent, x)


def torch_gradient(x: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
    primal = torch.tensor(x, requires_grad=True)
    xg.activation("Linear", rule="echo")(primal).backward(torch.tensor(cotangent))
    return primal.grad.numpy()


def jax_gradient(x: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
    import jax

    _, pullback = jax.vjp(jax.jit(xg.activation("Linear", rule="echo")), jax.numpy.asarray(x))
    return np.asarray(pullback(jax.numpy.asarray(cotangent))[0])


def tensorflow_gradient(x: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
    import tensorflow as tf

    primal = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(primal)
        y = tf.function(xg.activation("Linear", rule="echo"))(primal)
    return tape.gradient(y, primal, output_gradients=tf.constant(cotangent)).numpy()


GRADIENTS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "numpy": numpy_gradient,
    "torch": torch_gradient,
    "jax": jax_gradient,
    "tensorflow": tensorflow_gradient,
}


def main() -> None:
    random = np.random.default_rng(0)
    x, cotangent = random.normal(size=(2, 2, 5)).astype(np.float32)
    as_it_is = echo.function(None, torch.tensor(cotangent), torch.tensor(x)).numpy()

    print("the rule as it is, on torch tensors, then captured and run in each framework (float32)")
    print(f"{'as it is':<12}", *(f"{value:9.5f}" for value in as_it_is.ravel()))
    for row in xg.backends():
        if row.installed and row.name in GRADIENTS:
            gradient = GRADIENTS[row.name](x, cotangent)
            print(f"{row.name:<12}", *(f"{value:9.5f}" for value in gradient.ravel()))


if __name__ == "__main__":
    main()
