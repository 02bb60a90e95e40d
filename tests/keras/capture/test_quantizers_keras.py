"""Keras's own fake quantization on our `custom_gradient`: it gives what it gives on Keras's."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in

pytestmark = pytest.mark.needs("keras")
HOST = os.environ.get("KERAS_BACKEND", "")
X = (np.arange(24, dtype=np.float32) * 0.75 - 8).reshape(4, 6)  # exact in 8 bits
# The bits, whether the range is narrow, the axis of the channels, the limits.
SETTINGS = [
    pytest.param(8, False, None, [-6.0], [6.0], id="of all"),
    pytest.param(7, True, None, -0.1, 5.9, id="of numbers"),
    pytest.param(4, True, 1, [-1, 0, -6.5, -3, -9, -2], [1, 4, 0, 8.5, 9, 2], id="of channels"),
]


class AnyBackend:
    """Keras's backend, which does not say its name: TensorFlow has kernels of its own for this."""

    def __getattr__(self, name: str) -> Any:
        from keras.src import backend

        return getattr(backend, name)

    def backend(self) -> str:
        return "any"


def quantized(setting: tuple[Any, ...], dtype: str) -> tuple[Any, list[Any]]:
    """Return the quantized tensor and the gradients of the tensor and its limits."""
    from keras import ops
    from keras.src.quantizers import quantizers

    bits, narrow, axis, lowest, highest = setting
    arrays = [ops.cast(X, dtype), *(ops.cast(end, "float32") for end in (lowest, highest))]
    cotangent = ops.cast(X * X, dtype)

    def quantize(x: Any, low: Any, high: Any) -> Any:
        return quantizers.fake_quant_with_min_max_vars(x, low, high, bits, narrow, axis)

    y, pull = xg.vjp(quantize, *arrays)
    return y, [*pull(cotangent)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("bits", "narrow", "axis", "lowest", "highest"), SETTINGS)
def test_keras_s_quantizer_on_our_custom_gradient_is_keras_s(
    bits: int, narrow: bool, axis: Any, lowest: Any, highest: Any, dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    import keras
    from keras import ops
    from keras.src.quantizers import quantizers

    monkeypatch.setattr(quantizers, "backend", AnyBackend())
    setting = bits, narrow, axis, lowest, highest
    made = []

    def counted(f: Callable[..., Any]) -> Any:
        made.append(xg.custom_gradient(f))
        return made[-1]

    wanted, wanted_gradients = quantized(setting, "float32")
    monkeypatch.setattr(quantizers.ops, "custom_gradient", counted)
    given, gradients = quantized(setting, dtype)
    assert made
    # The gradients come in the dtypes of the arguments, whatever they were computed in.
    dtypes = [keras.backend.standardize_dtype(each.dtype) for each in (given, *gradients)]
    assert dtypes == [dtype, dtype, "float32", "float32"]
    tolerance = {"float32": 1e-6, "bfloat16": 1e-2}[dtype]
    for each, own in zip((given, *gradients), (wanted, *wanted_gradients), strict=True):
        shown, known = (ops.convert_to_numpy(ops.cast(one, "float32")) for one in (each, own))
        np.testing.assert_allclose(shown, known, rtol=tolerance, atol=tolerance)


# Keras's fake quantization inside of another function: read as Keras writes it.


keras: Any = pytest.importorskip("keras")
SETTINGS_INSIDE = [
    pytest.param({}, np.float32(-6), np.float32(6), id="of all"),
    pytest.param(
        {"num_bits": 4, "narrow_range": True, "axis": 1},
        np.float32([-1, 0, -6.5, -3, -9, -2]),
        np.float32([1, 4, 0, 8.5, 9, 2]),
        id="of channels",
    ),
]


@pytest.mark.parametrize(("options", "low", "high"), SETTINGS_INSIDE)
def test_it_gives_what_keras_gives(options: dict[str, Any], low: Any, high: Any) -> None:
    def weighted(x: Any, low: Any, high: Any) -> Any:
        return keras.quantizers.fake_quant_with_min_max_vars(x, low, high, **options) * x

    if HOST == "tensorflow":
        assert_as_in("tensorflow", weighted, X, np.asarray(low), np.asarray(high))
        return
    # Elsewhere Keras writes the gradient by keras.ops.custom_gradient.
    with pytest.raises(xg.TraceError, match=r"quantizers.py:\d+\) calls .*custom_gradient"):
        xg.function(weighted, native=False)(X, low, high)
