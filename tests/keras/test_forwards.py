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
    return x if float(x.sum()) > 0 else -x


@pytest.mark.parametrize("rule", [None, "triangular"])
@pytest.mark.parametrize("kind", ["keras", "plain", "Function", "defaults", "layer"])
def test_a_model_with_a_function_is_saved_and_predicts_the_same(
    xk: ModuleType, kind: str, rule: str | None, tmp_path: Path
) -> None:
    import keras

    forward = {
        "keras": keras.activations.mish,
        "plain": doubled_tanh,
        "Function": xg.function(xg.xp.sign, lambda grad_out, x: 5.0 * grad_out),
        "defaults": xg.estimators.ste_sign,
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


def test_a_param_of_one_part_is_bound_to_it_and_saved(xk: ModuleType) -> None:
    import keras

    given = {"triangular.width": 4.0, "scale[1].s": 3.0}
    chain = xg.compose("triangular", "scale", "scale")
    layer = xk.Activation("ReLU", chain, params=given)
    expected = "<Rule triangular(width=4.0) → scale → scale(s=3.0)>"
    copied = xk.Activation.from_config(json.loads(json.dumps(layer.get_config())))
    for each in (layer, copied):
        assert repr(each.rule) == expected
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(each(X)), np.maximum(X, 0))
        each.params["s"] = 5.0  # of the part that is left
        assert each.rule(None, X, X, s=5.0).max() == (X * 15 * (1 - abs(X) / 4)).max()
