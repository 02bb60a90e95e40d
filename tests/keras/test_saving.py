"""Saving: the config holds the rule as data, and what is loaded trains as what was saved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import multigrad as xg

pytestmark = pytest.mark.needs("keras")


def band(
    ctx: Any, grad_out: Any, tin: Any, edges: tuple[float, float] = (-0.5, 0.5), scale: float = 1.0
) -> Any:
    """scale * grad_out between two edges."""
    low, high = edges
    return scale * xg.xp.where((tin >= low) & (tin <= high), grad_out, 0.0)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """A rule of the user's own, and a composed one, registered while a test runs."""
    rule = xg.register("keras_test_band")(band)
    xg.register("keras_test_twice")(xg.compose("clip_norm", rule.with_params(scale=2.0)))
    yield
    xg.unregister("keras_test_band")
    xg.unregister("keras_test_twice")


def make_rule(name: str) -> Any:
    """Give a rule that is data in one of the forms."""
    return {
        "none": None,
        "name": "triangular",
        "Rule": xg.get("triangular"),
        "function": band,
        "bound": xg.get("keras_test_band").with_params(edges=(-1.0, 0.25)),
        "composed": xg.compose("triangular", xg.get("noise").with_params(sigma=0.5)),
        "composed and bound": xg.compose("triangular", "clip_norm").with_params(width=2.0),
        "nested": xg.compose("clip_norm", xg.compose("triangular", band)),
        "registered composition": xg.get("keras_test_twice"),
        "bound further": xg.get("keras_test_twice").with_params(edges=(0.0, 1.0)),
    }[name]


DATA = {
    "none": None,
    "name": "triangular",
    "Rule": "triangular",
    "function": "keras_test_band",
    "bound": {"name": "keras_test_band", "params": {"edges": [-1.0, 0.25]}},
    "composed": {"compose": ["triangular", {"name": "noise", "params": {"sigma": 0.5}}]},
    "composed and bound": {"compose": ["triangular", "clip_norm"], "params": {"width": 2.0}},
    "nested": {"compose": ["clip_norm", {"compose": ["triangular", "keras_test_band"]}]},
    "registered composition": "keras_test_twice",
    "bound further": {"name": "keras_test_twice", "params": {"edges": [0.0, 1.0]}},
}


@pytest.mark.parametrize("form", DATA)
def test_config_holds_the_rule_as_names_and_numbers(xk: ModuleType, form: str) -> None:
    layer = xk.Activation("relu", rule=make_rule(form), name="gate")
    config = layer.get_config()
    assert config["rule"] == DATA[form]
    assert (config["forward"], config["params"], config["name"]) == ("ReLU", {}, "gate")
    # As JSON brings it back, where there are no tuples.
    restored = xk.Activation.from_config(json.loads(json.dumps(config)))
    assert restored.get_config() == config


@pytest.mark.parametrize("form", ["none", "name", "bound", "nested", "bound further"])
def test_a_layer_made_from_its_config_has_the_same_gradient(
    xk: ModuleType, network: Any, form: str
) -> None:
    layer = xk.Activation("ReLU", rule=make_rule(form))
    copy = xk.Activation.from_config(json.loads(json.dumps(layer.get_config())))
    trained = [network.train(network.build(one)) for one in (layer, copy)]
    for ours, theirs in zip(*trained, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_params_of_the_layer_come_back(xk: ModuleType, network: Any) -> None:
    params = {"edges": (-1.0, 1.0), "scale": np.float32(0.5)}
    layer = xk.Activation("Heaviside", rule="keras_test_band", params=params)
    config = json.loads(json.dumps(layer.get_config()))
    assert config["params"] == {"edges": [-1.0, 1.0], "scale": 0.5}
    model = network.build(xk.Activation.from_config(config))
    network.check(model, lambda x: 0.5 * network.surrogates["rectangular"](x, -1, 1))


def test_a_saved_model_predicts_and_trains_the_same(
    xk: ModuleType, network: Any, kind: str, tmp_path: Path
) -> None:
    import keras

    rule = xg.compose("triangular", xg.get("rectangular").with_params(a=-0.25, b=0.5))
    model = network.build(xk.Activation("Heaviside", rule=rule), kind)
    file = tmp_path / "model.keras"
    model.save(file)
    loaded = keras.saving.load_model(file, safe_mode=True)
    np.testing.assert_array_equal(
        loaded.predict(network.x, verbose=0), model.predict(network.x, verbose=0)
    )
    triangle, window = network.surrogates["triangular"], network.surrogates["rectangular"]
    network.check(loaded, lambda x: triangle(x) * window(x, -0.25, 0.5))


def test_a_cloned_model_keeps_the_rule(xk: ModuleType, network: Any) -> None:
    import keras

    layer = xk.Activation("Heaviside", rule="triangular", params={"width": 2.0})
    clone = keras.models.clone_model(network.build(layer))
    clone.compile(keras.optimizers.SGD(network.rate), "mse")
    network.check(clone, lambda x: network.surrogates["triangular"](x, 2.0))


LOAD = """
import sys
import numpy as np
import multigrad.keras  # all that loading needs
import keras

model = keras.saving.load_model(sys.argv[1], safe_mode=True)
np.save(sys.argv[3], model.predict(np.load(sys.argv[2]), verbose=0))
print(keras.config.backend(), model.layers[1].get_config()["rule"])
"""


@pytest.mark.parametrize("reader", ["tensorflow", "jax", "torch"])
def test_a_fresh_process_on_any_backend_loads_the_file(
    xk: ModuleType, network: Any, reader: str, tmp_path: Path
) -> None:
    if find_spec(reader) is None:
        pytest.skip(f"{reader} not installed")
    model = network.build(xk.Activation("Heaviside", rule=xg.compose("triangular", "clip_norm")))
    files = [str(tmp_path / name) for name in ("model.keras", "x.npy", "y.npy")]
    model.save(files[0])
    np.save(files[1], network.x)
    run = subprocess.run(
        [sys.executable, "-c", LOAD, *files],
        env={**os.environ, "KERAS_BACKEND": reader},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == f"{reader} {{'compose': ['triangular', 'clip_norm']}}"
    expected = model.predict(network.x, verbose=0)
    np.testing.assert_allclose(np.load(files[2]), expected, rtol=0, atol=1e-6)


def nameless(ctx: Any, grad_out: Any, tin: Any) -> Any:
    """A rule that was never registered."""
    return 2.0 * grad_out


def test_a_function_without_a_name_is_refused_with_what_to_type(xk: ModuleType) -> None:
    layer = xk.Activation("ReLU", rule=nameless, name="gate")
    with pytest.raises(xg.RuleError, match=r"layer 'gate': .*@xg\.register\('nameless'\)"):
        layer.get_config()
    with pytest.raises(xg.RuleError, match=r"@xg\.register\('my_rule'\)"):
        xk.Activation("ReLU", rule=lambda ctx, grad_out, tin: grad_out).get_config()


def test_a_composed_rule_with_a_nameless_part_is_refused(xk: ModuleType) -> None:
    layer = xk.Activation("ReLU", rule=xg.compose("clip_norm", nameless))
    with pytest.raises(xg.RuleError, match="'nameless' cannot be saved"):
        layer.get_config()


@pytest.fixture
def taken() -> Iterator[str]:
    """A name that a test may register anew."""
    name = "keras_test_taken"
    xg.register(name)(nameless)
    yield name
    if name in xg.rules():
        xg.unregister(name)


def test_a_rule_whose_name_now_means_another_is_refused(xk: ModuleType, taken: str) -> None:
    layer = xk.Activation("ReLU", rule=xg.get(taken))
    assert layer.get_config()["rule"] == taken

    @xg.register(taken, override=True)
    def another(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out

    with pytest.raises(xg.RuleError, match="another rule is registered under that name now"):
        layer.get_config()


def test_loading_says_which_rule_to_register_first(xk: ModuleType, taken: str) -> None:
    own = xk.Activation("ReLU", rule=taken).get_config()
    part = xk.Activation("ReLU", rule=xg.compose("clip_norm", taken)).get_config()
    xg.unregister(taken)
    for config in (own, part):
        with pytest.raises(xg.RuleError, match=f"'{taken}'.* register it before loading"):
            xk.Activation.from_config(config)


@pytest.mark.parametrize(
    "data", [3, [], {}, {"function": "os.system"}, {"name": "noise", "code": "x"}, {"compose": "x"}]
)
def test_a_config_of_another_form_is_refused(xk: ModuleType, data: Any) -> None:
    config = {**xk.Activation("ReLU").get_config(), "rule": data}
    with pytest.raises(xg.RuleError, match="a saved rule is a name"):
        xk.Activation.from_config(config)
