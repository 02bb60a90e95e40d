"""Keras's fake quantization inside of another function: read as Keras writes it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import multigrad as xg

keras: Any = pytest.importorskip("keras")
pytestmark = pytest.mark.needs("keras")
HOST = os.environ.get("KERAS_BACKEND", "")
X = (np.arange(24, dtype=np.float32) * 0.75 - 8).reshape(4, 6)
SETTINGS = [
    pytest.param({}, np.float32(-6), np.float32(6), id="of all"),
    pytest.param(
        {"num_bits": 4, "narrow_range": True, "axis": 1},
        np.float32([-1, 0, -6.5, -3, -9, -2]),
        np.float32([1, 4, 0, 8.5, 9, 2]),
        id="of channels",
    ),
]


@pytest.mark.parametrize(("options", "low", "high"), SETTINGS)
def test_it_gives_what_keras_gives(options: dict[str, Any], low: Any, high: Any) -> None:
    def weighted(x: Any, low: Any, high: Any) -> Any:
        return keras.quantizers.fake_quant_with_min_max_vars(x, low, high, **options) * x

    captured = xg.function(weighted, native=False)
    if HOST != "tensorflow":  # elsewhere Keras writes the gradient by keras.ops.custom_gradient
        with pytest.raises(xg.TraceError, match=r"quantizers.py:\d+\) calls .*custom_gradient"):
            captured(X, low, high)
        return
    import tensorflow as tf

    arrays = [tf.constant(array) for array in (X, low, high)]
    with tf.GradientTape() as tape:
        tape.watch(arrays)
        expected = weighted(*arrays)
    result, pull = xg.vjp(captured, X, low, high)
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    ones = np.ones_like(result)
    for one, other in zip(pull(ones), tape.gradient(expected, arrays), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
