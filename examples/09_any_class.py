"""A `torch.autograd.Function` class, unchanged, on every framework that is installed, with the same
gradients.

The class clamps and lets a gradient pass outside of the limits only where it leads back inside: a
trick of image generators. Its author wrote it for PyTorch alone. Needs: pip install
'multigrad-rules[torch]'; with [jax], [tensorflow] it runs there too
"""

from importlib.util import find_spec

import numpy as np
import torch

import multigrad as xg


class ClampTowardsInside(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, low, high):
        ctx.limits = low, high
        ctx.save_for_backward(x)
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx, grad_out):
        (x,) = ctx.saved_tensors
        outside = x - x.clamp(*ctx.limits)
        return grad_out * (grad_out * outside >= 0), None, None


clamp = xg.from_autograd_function(ClampTowardsInside)

X = np.array([-2.0, -1.0, 0.5, 1.0, 3.0], np.float32)
GRAD_OUT = np.array([1.0, -1.0, 1.0, -1.0, 1.0], np.float32)


def original() -> np.ndarray:
    """The class as PyTorch runs it."""
    x = torch.tensor(X, requires_grad=True)
    ClampTowardsInside.apply(x, -1.0, 1.0).backward(torch.tensor(GRAD_OUT))
    return x.grad.numpy()


def on_torch() -> np.ndarray:
    x = torch.tensor(X, requires_grad=True)
    clamp(x, -1.0, 1.0).backward(torch.tensor(GRAD_OUT))
    return x.grad.numpy()


def on_jax() -> np.ndarray:
    import jax

    # jit, vmap, scan: it is an ordinary jax.custom_vjp function now.
    _, pullback = jax.vjp(jax.jit(lambda x: clamp(x, -1.0, 1.0)), jax.numpy.asarray(X))
    return np.asarray(pullback(jax.numpy.asarray(GRAD_OUT))[0])


def on_tensorflow() -> np.ndarray:
    import tensorflow as tf

    x = tf.Variable(X)
    with tf.GradientTape() as tape:
        y = clamp(x, -1.0, 1.0)
    return tape.gradient(y, x, output_gradients=tf.constant(GRAD_OUT)).numpy()


def on_numpy() -> np.ndarray:
    _, pullback = xg.vjp(clamp, X, -1.0, 1.0)
    return pullback(GRAD_OUT)[0]


def main() -> None:
    expected = original()
    print(f"{'the class itself':18}", *expected)
    runs = {"torch": on_torch, "jax": on_jax, "tensorflow": on_tensorflow, "numpy": on_numpy}
    for name, run in runs.items():
        if find_spec(name) is None:
            continue
        gradient = run()
        same = "equal bit for bit" if gradient.tobytes() == expected.tobytes() else "DIFFERENT"
        print(f"{name:18}", *gradient, same)
    print(xg.source(clamp, "torch"))


if __name__ == "__main__":
    main()
