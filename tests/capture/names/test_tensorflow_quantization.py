"""TensorFlow's fake quantization, and custom gradients that apply themselves, as graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

tf: Any = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.needs("tensorflow")
Tensor = Any
X = np.random.default_rng(0).normal(scale=3, size=(8, 6)).astype(np.float32)
X[0] = 0.0, -0.0, 6.0, -6.0, 1.0, 2.5
X[1, 0] = 2.0  # half of a step, where it is a 255th of 4
COTANGENT = np.random.default_rng(1).normal(size=X.shape).astype(np.float32)
ENDS = np.array(-1.3, np.float32), np.array(2.7, np.float32)
CHANNELS = (
    np.array([-1.0, -0.3, 0.0, 0.0, -2.0, -0.7], np.float32),
    np.array([0.4, 1.3, 0.0, 1.0, 0.5, 2.0], np.float32),
)
fake = tf.quantization
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "args": (lambda x: fake.fake_quant_with_min_max_args(x, -1.5, 3.0, 4, True), ()),
    "args above zero": (lambda x: fake.fake_quant_with_min_max_args(x, 2.0, 6.0), ()),
    "vars": (fake.fake_quant_with_min_max_vars, ENDS),
    "vars between zeros": (fake.fake_quant_with_min_max_vars, (ENDS[0] * 0, ENDS[1] * 0)),
    "constants": (lambda x: fake.fake_quant_with_min_max_vars(x, -1.0, tf.constant(1.3), 3), ()),
    "channels": (
        lambda x, low, high: fake.fake_quant_with_min_max_vars_per_channel(x, low, high, 4),
        CHANNELS,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_fake_quantization_is_the_same_everywhere(name: str, backend: Any) -> None:
    function, more = CASES[name]
    arrays = (X, *more)
    tensors = [tf.constant(array) for array in arrays]
    with tf.GradientTape() as tape:
        for tensor in tensors:
            tape.watch(tensor)
        expected = function(*tensors)
    gradients = tape.gradient(expected, tensors, tf.constant(COTANGENT))
    graph = xg.function(lambda *args: function(*args), native=False)
    y, pull = xg.vjp(graph, *map(backend.array, arrays))
    np.testing.assert_array_equal(backend.numpy(y), expected.numpy())
    for own, gradient in zip(pull(backend.array(COTANGENT)), gradients, strict=True):
        np.testing.assert_allclose(backend.numpy(own), gradient.numpy(), rtol=1e-5, atol=1e-6)


def test_gradients_of_fake_quantization_are_captured() -> None:
    def both(ct: Tensor, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        one = fake.fake_quant_with_min_max_vars_per_channel_gradient(ct, x, low, high)
        return one[0] + one[1] + one[2] + fake.fake_quant_with_min_max_args_gradient(ct, x, -1.0)

    expected = both(*map(tf.constant, (COTANGENT, X, *CHANNELS))).numpy()
    result = xg.function(both, native=False)(COTANGENT, X, *CHANNELS)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def decorated_at_every_call(x: Tensor) -> Tensor:
    """As TensorFlow Probability decorates its functions."""

    @tf.custom_gradient
    def wrapped(x: Tensor) -> Any:
        return tf.sin(x), lambda upstream: upstream * (1.0 + decorated_at_every_call(x))

    return wrapped(x)


def test_a_backward_may_apply_a_function_that_is_decorated_at_every_call(backend: Any) -> None:
    graph = xg.function(decorated_at_every_call, native=False)
    y, pull = xg.vjp(graph, backend.array(X))
    np.testing.assert_allclose(backend.numpy(y), np.sin(X), rtol=1e-5, atol=1e-6)
    (gradient,) = pull(backend.array(COTANGENT))
    np.testing.assert_allclose(
        backend.numpy(gradient), COTANGENT * (1 + np.sin(X)), rtol=1e-5, atol=1e-6
    )
