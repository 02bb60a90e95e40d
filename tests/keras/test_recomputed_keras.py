"""A layer whose params are Variables inside of a region that runs forward again within backward."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

import multigrad as xg

pytestmark = [pytest.mark.needs("keras"), pytest.mark.needs("tensorflow")]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_layer_with_params_runs_again_under_its_own_rule(xk: ModuleType, compiled: bool) -> None:
    import keras

    if keras.config.backend() != "tensorflow":
        pytest.skip("tf.recompute_grad is TensorFlow's")
    import tensorflow as tf

    layer = xk.Activation("Heaviside", rule="triangular", params={"width": 2.0})
    values = np.linspace(-1.5, 1.5, 7, dtype=np.float32)
    layer.build(values.shape)
    region = tf.recompute_grad(lambda x: layer(x) * 3.0)

    def grad(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = region(x)
        with xg.use("scale", {"s": 7.0}):
            return tape.gradient(y, x)

    grad = tf.function(grad) if compiled else grad
    for width in (2.0, 0.75):
        layer.params["width"].assign(width)
        expected = 3.0 * np.maximum(0.0, 1.0 - np.abs(values) / width)
        np.testing.assert_allclose(grad(tf.constant(values)), expected, rtol=1e-6)
