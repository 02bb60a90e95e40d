"""Functions of the library in Keras models: steps that a layer learns, in a graph and in `call`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("keras")


def test_a_layer_learns_its_steps() -> None:
    import keras

    class Quantized(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.step = self.add_weight(shape=shape[-1:], initializer="ones")

        def call(self, x: Any) -> Any:
            return xg.estimators.lsq(x, self.step, bits=3)

    layer = Quantized()
    model = keras.Sequential([keras.Input((4,)), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).standard_normal((32, 4))
    model.fit(x, x[:, :1], epochs=1, verbose=0)
    assert np.abs(np.array(layer.step) - 1).min() > 1e-7


def test_a_model_of_functions_is_checked_while_it_is_built() -> None:
    import keras

    inputs = keras.Input((3, 4))
    y = xg.estimators.lsq(inputs, 0.25, bits=3)
    assert y.shape == (None, 3, 4)
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(1, 3, 4)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(keras.Model(inputs, y)(x)),
        xg.estimators.lsq(x, 0.25, bits=3),
        rtol=1e-6,
    )
    with pytest.raises(xg.RuleError, match=r"'step' of shape \(3,\) for 'x' of shape \(None, 3, 4"):
        xg.estimators.lsq(inputs, np.ones(3, np.float32))
