"""`xg.function` of a Keras layer: its variables are read at each call, on every framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

keras: Any = pytest.importorskip("keras")
pytestmark = pytest.mark.needs("keras")
X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]], np.float32)


class Block(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Dense(3)
        self.others = [keras.layers.LayerNormalization(), keras.layers.LeakyReLU()]
        self.gain = self.add_weight(shape=(3,), initializer="ones")

    def call(self, x: Any) -> Any:
        y = keras.ops.tanh(self.first(x) * self.gain) + x
        for layer in self.others:
            y = layer(y)
        return y


def dense() -> Any:
    return keras.layers.Dense(2, activation="tanh", kernel_initializer="glorot_uniform")


def sequential() -> Any:
    return keras.Sequential([keras.layers.Dense(4, activation="silu"), dense()])


MAKERS = (dense, sequential, Block)


def on_keras(layer: Any) -> np.ndarray[Any, Any]:
    return keras.ops.convert_to_numpy(layer(keras.ops.convert_to_tensor(X)))


@pytest.mark.parametrize("make", MAKERS)
def test_a_layer_on_arrays_has_the_weights_of_now_and_its_gradient(make: Any) -> None:
    keras.utils.set_random_seed(0)
    layer = make()
    layer(keras.ops.convert_to_tensor(X))
    function = xg.function(layer, native=False)
    for _ in range(2):
        expected = on_keras(layer)
        outputs, pullback = xg.vjp(function, X)
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-6)
        direction, size = np.cos(3 * X), 1e-2
        ahead, behind = function(X + size * direction), function(X - size * direction)
        slope = float((ahead - behind).sum()) / (2 * size)
        found = float((pullback(np.ones_like(outputs))[0] * direction).sum())
        np.testing.assert_allclose(found, slope, rtol=2e-2, atol=1e-3)
        for variable in layer.trainable_variables:
            variable.assign(variable.value * 1.5 + 0.1)


def test_on_kerass_backend_the_layer_itself_runs() -> None:
    layer = dense()
    x = keras.ops.convert_to_tensor(X)
    layer(x)
    function = xg.function(layer)
    expected = keras.ops.convert_to_numpy(layer(x))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(function(x)), expected)


def test_a_layer_without_weights_is_captured_wherever_it_is_called() -> None:
    layer = keras.layers.Activation("softplus")
    function = xg.function(lambda x: 2 * layer(x), native=False)
    np.testing.assert_allclose(function(X), 2 * np.log1p(np.exp(X)), rtol=1e-5)


def test_a_layer_in_training_is_refused() -> None:
    layer = keras.layers.Dropout(0.5)
    function = xg.function(lambda x: layer(x, training=True), native=False)
    with pytest.raises(xg.errors.TraceError, match="in training"):
        function(X)


def test_an_audit_asks_for_the_gradients_of_a_layer_s_weights() -> None:
    report = xg.audit(dense(), X, laws=["derivative", "linear"])
    assert report.ok and "kernel float32[3, 2]" in report.inputs
    assert report.inputs.count(",") == 4  # no weight stands there twice
