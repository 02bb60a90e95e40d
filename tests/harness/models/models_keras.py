"""A Keras model to put rules on, trained by hand and as it was written."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..traced import taped

RNG = np.random.default_rng(11)
X = RNG.normal(size=(8, 6)).astype(np.float32)
Y = RNG.normal(size=(8, 6)).astype(np.float32)
WEIGHTS = [0.4 * RNG.normal(size=size).astype(np.float32) for size in ((6, 6), (6,)) * 3]
NONE = "keras_test_none"
RULE = "rectangular"


@pytest.fixture
def registered() -> None:
    """A rule that hands nothing on, registered while a test runs."""

    @xg.register(NONE)
    def none(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return 0.0 * grad_out


def build(middle: Callable[[], Any], **options: Any) -> Any:
    """Give a compiled model with two layers of a kind, the weights the same each time."""
    import keras

    dense = keras.layers.Dense
    layers = [dense(6, name="a"), middle(), dense(6, name="b"), middle(), dense(6, name="c")]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.set_weights(WEIGHTS)
    model.compile(keras.optimizers.SGD(0.25), "mse", **options)
    return model


def plain(**options: Any) -> Any:
    import keras

    return build(keras.layers.ReLU, **options)


def written(**options: Any) -> Any:
    import multigrad.keras as xk

    return build(lambda: xk.Activation("ReLU", RULE), **options)


@functools.cache
def trained() -> list[Any]:
    """Give the weights after one epoch of the model with the rule written into it."""
    return fit(written())


def fit(model: Any) -> list[Any]:
    model.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    return model.get_weights()


def pull(f: Any, x: Any, cotangent: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Give a model's outputs, and a cotangent (a function of the outputs) pulled back."""
    import keras

    y, back = xg.vjp(f, keras.ops.convert_to_tensor(x))
    (grad,) = back(keras.ops.convert_to_tensor(cotangent(keras.ops.convert_to_numpy(y))))
    return keras.ops.convert_to_numpy(y), keras.ops.convert_to_numpy(grad)


def compile_gradient(f: Any) -> Callable[[Any], Any]:
    """Give the gradient of the sum of a model's or a layer's outputs, compiled without Keras."""
    import keras

    backend = keras.config.backend()
    if backend == "jax":
        import jax

        return jax.jit(jax.grad(lambda x: f(x).sum()))
    if backend == "torch":
        import torch

        def run(x: Any) -> Any:
            x = torch.tensor(x, requires_grad=True)
            return torch.autograd.grad(compiled(x).sum(), x)[0].numpy()

        compiled = torch.compile(lambda x: f(x), backend="aot_eager")
        return run
    import tensorflow as tf

    compute = tf.function(taped(f))
    return lambda x: compute(tf.constant(x)).numpy()


def relevance(y: Any) -> Any:
    return np.cos(np.arange(y.size, dtype=np.float32)).reshape(y.shape)


def assert_close(ours: list[Any], theirs: list[Any]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def differ(ours: list[Any], theirs: list[Any]) -> bool:
    return max(np.abs(a - b).max() for a, b in zip(ours, theirs, strict=True)) > 1e-4
