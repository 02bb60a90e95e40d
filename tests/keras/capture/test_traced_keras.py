"""Functions of Keras that no row knows are captured by the trace of the backend that it runs on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

keras: Any = pytest.importorskip("keras")
pytestmark = pytest.mark.needs("keras")
X = np.array([[1.5, -0.25, 0.7], [0.5, 2.0, -1.1]], np.float32)

CALLS: dict[str, Callable[[Any], Any]] = {
    "sparsemax": lambda x: keras.ops.sparsemax(x),
    "trapezoid": lambda x: keras.ops.trapezoid(x, axis=0),
    "dot_product_attention": lambda x: keras.ops.dot_product_attention(*[x[None, :, None]] * 3),
    "relu": lambda x: keras.activations.relu(x, 0.2, 1.8, 0.6),
    "sparse_categorical_crossentropy": lambda x: keras.losses.sparse_categorical_crossentropy(
        np.array([0, 2]), x, from_logits=True
    ),
    "rgb_to_grayscale": lambda x: keras.ops.image.rgb_to_grayscale(x[None, None]),
}


def slope(function: Callable[[Any], Any], weights: Any, direction: Any) -> float:
    """Return the derivative along a direction, by differences in Keras."""
    ahead, behind = (
        function(keras.ops.convert_to_tensor(X + h * direction)) for h in (1e-2, -1e-2)
    )
    return float(keras.ops.sum((ahead - behind) * weights)) / 2e-2


@pytest.mark.parametrize("name", CALLS)
def test_a_function_without_a_row_has_its_numbers_and_gradient(name: str) -> None:
    call = CALLS[name]
    expected = keras.ops.convert_to_numpy(call(keras.ops.convert_to_tensor(X)))
    function = xg.function(call, native=False)
    y, pull = xg.vjp(function, X)
    np.testing.assert_allclose(y, expected, rtol=3e-6, atol=1e-6)
    weights = np.linspace(0.5, 1.5, y.size, dtype=y.dtype).reshape(y.shape)
    direction = np.cos(3 * X)
    found = float((pull(weights)[0] * direction).sum())
    np.testing.assert_allclose(found, slope(call, weights, direction), rtol=2e-2, atol=2e-3)
    assert f"by keras's own trace of {name}" in str(xg.show(function))


def test_what_the_backend_cannot_trace_is_refused_with_the_reason() -> None:
    function = xg.function(lambda x: keras.ops.bincount(keras.ops.cast(x, "int32")), native=False)
    with pytest.raises(xg.TraceError, match=r"bincount, which is not captured.*\("):
        function(X)
