"""Hand-written rivals in TensorFlow: `tf.custom_gradient`, measured inside one `tf.function`.

`plain` keeps x; `hand-written` keeps a mask where that is enough and runs fewer ops. In a graph the
ops run one by one, so their number counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

Tensor: TypeAlias = Any

A, B = -0.5, 0.5
WIDTH, ALPHA = 1.0, 2.0
MAX_NORM, EPS = 1.0, 1e-12


def step(x: Tensor) -> Tensor:
    """The forward of a spiking unit."""
    return tf.cast(x > 0, x.dtype)


def keep_input(x: Tensor) -> Tensor:
    """Keep x."""
    return x


def keep_window(x: Tensor) -> Tensor:
    """Keep a byte per element; a value equals its clipped self inside the window only."""
    return tf.equal(tf.clip_by_value(x, A, B), x)


def keep_positive(x: Tensor) -> Tensor:
    """Keep a byte per element."""
    return x > 0


def build(
    forward: Callable[[Tensor], Tensor],
    keep: Callable[[Tensor], Tensor],
    pull: Callable[[Tensor, Tensor], Tensor],
) -> Callable[[Tensor], Tensor]:
    """Return a function with the custom gradient `pull(keep(x), grad_out)`."""

    @tf.custom_gradient
    def function(x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        kept = keep(x)

        def backward(grad_out: Tensor) -> Tensor:
            return pull(kept, grad_out)

        return forward(x), backward

    return function


def plain_triangular(x: Tensor, grad_out: Tensor) -> Tensor:
    """The formula as it stands."""
    return grad_out * tf.maximum(1 - tf.abs(x) / WIDTH, 0)


def triangular(x: Tensor, grad_out: Tensor) -> Tensor:
    """The same without the division, which a width of 1 does not need; else it scales x first."""
    scaled = x if WIDTH == 1.0 else x * (1 / WIDTH)
    return grad_out * tf.nn.relu(1 - tf.abs(scaled))


def plain_arctan(x: Tensor, grad_out: Tensor) -> Tensor:
    """The formula as it stands."""
    return grad_out * (ALPHA / 2 / (1 + (math.pi / 2 * ALPHA * x) ** 2))


def arctan(x: Tensor, grad_out: Tensor) -> Tensor:
    """Divides by c + d x^2: four ops for six."""
    slope = (2 / ALPHA) * (math.pi / 2 * ALPHA) ** 2
    return grad_out / (tf.square(x) * slope + 2 / ALPHA)


def plain_rectangular(x: Tensor, grad_out: Tensor) -> Tensor:
    """Asks for the window in backward."""
    return grad_out * tf.cast((x >= A) & (x <= B), grad_out.dtype)


def plain_relu_derivative(x: Tensor, grad_out: Tensor) -> Tensor:
    """Compares in backward."""
    return grad_out * tf.cast(x > 0, grad_out.dtype)


def mask(kept: Tensor, grad_out: Tensor) -> Tensor:
    """The product with a mask."""
    return grad_out * tf.cast(kept, grad_out.dtype)


def fused_relu_derivative(output: Tensor, grad_out: Tensor) -> Tensor:
    """The kernel of TensorFlow's own ReLU, which gives 0 where the product gives NaN."""
    return tf.raw_ops.ReluGrad(gradients=grad_out, features=output)


def plain_clip_norm(x: Tensor, grad_out: Tensor) -> Tensor:
    """Asks TensorFlow for the norm."""
    return grad_out * tf.minimum(MAX_NORM / tf.maximum(tf.norm(grad_out), EPS), 1)


def clip_norm(x: Tensor, grad_out: Tensor) -> Tensor:
    """Takes half the squared norm by its one kernel."""
    norm = tf.sqrt(2 * tf.nn.l2_loss(grad_out))
    return grad_out * tf.minimum(MAX_NORM / tf.maximum(norm, EPS), 1)


RIVALS = {
    ("Heaviside", "triangular"): {
        "plain": build(step, keep_input, plain_triangular),
        "hand-written": build(step, keep_input, triangular),
    },
    ("ReLU", "rectangular"): {
        "plain": build(tf.nn.relu, keep_input, plain_rectangular),
        "hand-written": build(tf.nn.relu, keep_window, mask),
    },
    ("Heaviside", "rectangular"): {
        "plain": build(step, keep_input, plain_rectangular),
        "hand-written": build(step, keep_window, mask),
    },
    ("Heaviside", "arctan"): {
        "plain": build(step, keep_input, plain_arctan),
        "hand-written": build(step, keep_input, arctan),
    },
    ("ReLU", "d(ReLU)"): {
        "plain": build(tf.nn.relu, keep_input, plain_relu_derivative),
        "hand-written": build(tf.nn.relu, keep_positive, mask),
        "shortcut": build(tf.nn.relu, keep_input, fused_relu_derivative),
    },
    ("Linear", "clip_norm"): {
        "plain": build(tf.identity, keep_input, plain_clip_norm),
        "hand-written": build(tf.identity, keep_input, clip_norm),
    },
}
