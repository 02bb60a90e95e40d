"""Functions in the place of an activation's name: what is saved of one is its graph."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("keras")
X = np.linspace(-2.0, 2.0, 12).astype(np.float32).reshape(4, 3)


def doubled_tanh(x: Any) -> Any:
    return 2.0 * xg.xp.tanh(x)


def branches(x: Any) -> Any:
    return x if x.sum() > 0 else -x


@pytest.mark.parametrize("rule", [None, "triangular"])
@pytest.mark.parametrize("kind", ["keras", "plain", "Function", "layer"])
def test_a_model_with_a_function_is_saved_and_predicts_the_same(
    xk: ModuleType, kind: str, rule: str | None, tmp_path: Path
) -> None:
    import keras

    forward = {
        "keras": keras.activations.mish,
        "plain": doubled_tanh,
        "Function": xg.function(xg.xp.sign, lambda grad_out, x: 5.0 * grad_out),
        "layer": keras.layers.LeakyReLU(0.3),
    }[kind]
    inputs = keras.Input((3,))
    layer = xk.Activation(forward, rule, name="ours")
    model = keras.Model(inputs, layer(inputs))
    path = tmp_path / "model.keras"
    model.save(path)
    json.dumps(layer.get_config())
    loaded = keras.saving.load_model(path, safe_mode=True)
    expected = keras.ops.convert_to_numpy(forward(X))
    for each in (model, loaded):
        np.testing.assert_allclose(each.predict(X, verbose=0), expected, rtol=1e-5)
    assert repr(loaded.get_layer("ours")._activation) == repr(layer._activation)
    loaded.get_layer("ours").rule = "rectangular"  # the forward stays
    np.testing.assert_allclose(loaded.predict(X, verbose=0), expected, rtol=1e-5)


def test_what_is_not_captured_cannot_be_saved(xk: ModuleType) -> None:
    layer = xk.Activation(branches, name="ours")
    with pytest.raises(xg.TraceError, match=r"layer 'ours' cannot be saved: .*'branches'"):
        layer.get_config()


def test_a_config_that_holds_no_function_is_refused(xk: ModuleType) -> None:
    config = xk.Activation(doubled_tanh).get_config()
    for forward in ({"format": "multigrad"}, 3, xg.get("triangular").to_dict()):
        with pytest.raises(xg.FormatError):
            xk.Activation.from_config({**config, "forward": forward})
