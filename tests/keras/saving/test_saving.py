"""Saving: the config holds the rule as data, and what is loaded trains as what was saved."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...data.releases import write as releases

keras: Any = pytest.importorskip("keras")
xk: Any = pytest.importorskip("multigrad.keras")

pytestmark = pytest.mark.needs("keras")


def nameless(ctx: Any, grad_out: Any, tin: Any) -> Any:
    """A rule that was never registered."""
    return 2.0 * grad_out


def band(
    ctx: Any, grad_out: Any, tin: Any, edges: tuple[float, float] = (-0.5, 0.5), scale: float = 1.0
) -> Any:
    """scale * grad_out between two edges."""
    low, high = edges
    return scale * xg.xp.where((tin >= low) & (tin <= high), grad_out, 0.0)


@pytest.fixture(autouse=True)
def registered() -> None:
    """A rule of the user's own, and a composed one, registered while a test runs."""
    rule = xg.register("keras_test_band")(band)
    xg.register("keras_test_twice")(xg.compose("clip_norm", rule.with_params(scale=2.0)))


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
        "nameless": nameless,
        "chosen": xg.get("rectangular").keeping("packed").copy(fused=False),
        "user's, chosen": xg.get("keras_test_band").keeping("input"),
        "parts, chosen": xg.compose(xg.get("rectangular").keeping("packed"), "triangular"),
    }[name]


GRAPH = object()  # stands for a document
DATA = {
    "none": None,
    "name": "triangular",
    "Rule": "triangular",
    "function": {"name": "keras_test_band", "graph": GRAPH},
    "bound": {"name": "keras_test_band", "graph": GRAPH, "params": {"edges": [-1.0, 0.25]}},
    "composed": {"compose": ["triangular", {"name": "noise", "params": {"sigma": 0.5}}]},
    "composed and bound": {"compose": ["triangular", "clip_norm"], "params": {"width": 2.0}},
    "nested": {"graph": GRAPH},
    "registered composition": {"name": "keras_test_twice", "graph": GRAPH},
    "bound further": {"name": "keras_test_twice", "graph": GRAPH, "params": {"edges": [0.0, 1.0]}},
    "nameless": {"graph": GRAPH},
    "chosen": {"rule": "rectangular", "residuals": "packed", "fused": False},
    "user's, chosen": {"rule": {"name": "keras_test_band", "graph": GRAPH}, "residuals": "input"},
    "parts, chosen": {
        "rule": {"compose": [{"rule": "rectangular", "residuals": "packed"}, "triangular"]},
        "residuals": "packed",
    },
}


@pytest.mark.parametrize("form", DATA)
def test_config_holds_the_rule_as_names_numbers_and_graphs(form: str) -> None:
    layer = xk.Activation("relu", rule=make_rule(form), name="gate")
    config = layer.get_config()
    rule = json.loads(json.dumps(config["rule"]))
    inner = rule.get("rule", rule) if isinstance(rule, dict) else {}
    if "graph" in inner:
        assert (inner["graph"]["format"], inner["graph"]["kind"]) == ("multigrad", "rule")
        inner["graph"] = GRAPH
    assert rule == DATA[form]
    assert (config["forward"], config["params"], config["name"]) == ("ReLU", {}, "gate")
    # As JSON brings it back, where there are no tuples.
    restored = xk.Activation.from_config(json.loads(json.dumps(config)))
    assert restored.get_config() == config


@pytest.mark.parametrize("form", ["none", "name", "bound", "nested", "bound further", "nameless"])
def test_a_layer_made_from_its_config_has_the_same_gradient(network: Any, form: str) -> None:
    layer = xk.Activation("ReLU", rule=make_rule(form))
    copy = xk.Activation.from_config(json.loads(json.dumps(layer.get_config())))
    trained = [network.train(network.build(one)) for one in (layer, copy)]
    for ours, theirs in zip(*trained, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_was_chosen_of_memory_and_speed_is_saved_with_a_function() -> None:
    function = xg.function(lambda x: np.tanh(x), lambda g, x: g * np.cos(x))
    function = function.keeping("packed", fused=False)
    function(np.ones(3))
    for function_or_estimator in (function, xg.estimators.ste_round.keeping(fused=True)):
        layer = xk.CustomGradient(function_or_estimator, name="layer")
        config = json.loads(json.dumps(layer.get_config()))
        again = xk.CustomGradient.from_config(config).function
        for word in ("residuals", "fused"):
            assert getattr(again, word) == getattr(function_or_estimator, word)
    config["function"]["fused"] = "no"
    with pytest.raises(xg.FormatError, match="'layer': fused is"):
        xk.CustomGradient.from_config(config)


def test_params_of_the_layer_come_back(network: Any) -> None:
    params = {"edges": (-1.0, 1.0), "scale": np.float32(0.5)}
    layer = xk.Activation("Heaviside", rule="keras_test_band", params=params)
    config = json.loads(json.dumps(layer.get_config()))
    assert config["params"] == {"edges": [-1.0, 1.0], "scale": 0.5}
    model = network.build(xk.Activation.from_config(config))
    network.check(model, lambda x: 0.5 * network.surrogates["rectangular"](x, -1, 1))


def test_the_value_at_the_jump_is_saved_with_the_layer() -> None:
    for at_zero, name in ((1, "Heaviside(at_zero=1.0)"), (None, "Heaviside")):
        for make in (xk.Activation, xk.activation):
            layer = make("Heaviside", "spikingjelly.ATan", at_zero=at_zero, name="spike")
            config = json.loads(json.dumps(layer.get_config()))
            assert (config["forward"], config["rule"]) == (name, "spikingjelly.ATan")
            for each in (layer, type(layer).from_config(config)):
                y = keras.ops.convert_to_numpy(each(np.array([-1.0, 0.0, -0.0], np.float32)))
                np.testing.assert_array_equal(y, [0.0, at_zero or 0.0, at_zero or 0.0])
    layer.rule = "triangular"
    assert layer.get_config()["forward"] == "Heaviside"


def test_a_saved_model_predicts_and_trains_the_same(
    network: Any, kind: str, tmp_path: Path
) -> None:
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


def test_a_cloned_model_keeps_the_rule(network: Any) -> None:
    layer = xk.Activation("Heaviside", rule="triangular", params={"width": 2.0})
    clone = keras.models.clone_model(network.build(layer))
    clone.compile(keras.optimizers.SGD(network.rate), "mse")
    network.check(clone, lambda x: network.surrogates["triangular"](x, 2.0))


def looping(ctx: Any, grad_out: Any, tin: Any) -> Any:
    """A rule that looks at its numbers, so it cannot be captured."""
    return 2.0 * grad_out if float(grad_out.max()) > 0 else grad_out


@pytest.mark.filterwarnings("ignore::multigrad.errors.NativeRuleWarning")
def test_a_rule_without_graph_and_name_is_refused_with_what_to_type() -> None:
    layer = xk.Activation("ReLU", rule=looping, name="gate")
    with pytest.raises(xg.RuleError, match=r"layer 'gate': .*@xg\.register\('looping'\)"):
        layer.get_config()
    composed = xk.Activation("ReLU", rule=xg.compose("clip_norm", looping))
    with pytest.raises(xg.RuleError, match="'looping' cannot be saved"):
        composed.get_config()


def test_a_rule_without_a_graph_is_saved_by_name() -> None:
    native = "keras_test_native"
    xg.register(native, native=True)(looping)
    config = xk.Activation("ReLU", rule=native).get_config()
    assert config["rule"] == native
    composed = xk.Activation("ReLU", rule=xg.compose("clip_norm", native)).get_config()
    assert composed["rule"] == {"compose": ["clip_norm", native]}
    assert xk.Activation.from_config(config).rule == native
    xg.unregister(native)
    for saved in (config, composed):
        with pytest.raises(xg.RuleError, match=f"'{native}'.* register it before loading"):
            xk.Activation.from_config(saved)


@pytest.fixture
def taken() -> str:
    """A name that a test may register anew."""
    name = "keras_test_taken"
    xg.register(name)(nameless)
    return name


def another(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return 3.0 * grad_out


def slope_of(layer: Any) -> float:
    """Give the factor by which a layer's rule multiplies, from its document run on NumPy."""
    rule = xg.get(layer.rule)
    return float(rule(None, np.ones(1), np.ones(1))[0])


def test_a_deleted_rule_loads_from_its_graph(taken: str) -> None:
    config = json.loads(json.dumps(xk.Activation("ReLU", rule=taken).get_config()))
    xg.unregister(taken)
    layer = xk.Activation.from_config(config)
    assert slope_of(layer) == 2.0
    assert xk.Activation.from_config(layer.get_config()).get_config() == layer.get_config()


def test_a_name_that_means_another_rule_now_does_not_change_what_was_saved(taken: str) -> None:
    layer = xk.Activation("ReLU", rule=taken)
    config = layer.get_config()
    xg.register(taken, override=True)(another)
    with pytest.warns(UserWarning, match=f"{taken!r} was saved with another graph"):
        loaded = xk.Activation.from_config(config)
    assert slope_of(loaded) == 2.0
    loaded.rule = taken
    assert slope_of(loaded) == slope_of(layer) == 3.0


def test_a_name_with_the_same_meaning_stays_a_name(taken: str) -> None:
    assert xk.Activation.from_config(xk.Activation("ReLU", taken).get_config()).rule == taken


@pytest.mark.parametrize(
    "data", [3, [], {}, {"function": "os.system"}, {"name": "noise", "code": "x"}, {"compose": "x"}]
)
def test_a_config_of_another_form_is_refused(data: Any) -> None:
    config = {**xk.Activation("ReLU", name="gate").get_config(), "rule": data}
    with pytest.raises(xg.FormatError, match="layer 'gate': a saved rule is a name"):
        xk.Activation.from_config(config)


def change_config(file: Path, change: Any) -> Path:
    """Write a copy of a model file whose layer 'gate' has another config."""
    changed = file.with_name("changed.keras")
    with zipfile.ZipFile(file) as before, zipfile.ZipFile(changed, "w") as after:
        for name in before.namelist():
            data = before.read(name)
            if name == "config.json":
                config = json.loads(data)
                layers = config["config"]["layers"]
                (gate,) = [layer for layer in layers if layer["config"]["name"] == "gate"]
                change(gate["config"])
                data = json.dumps(config).encode()
            after.writestr(name, data)
    return changed


@pytest.mark.parametrize(
    "change",
    [
        {"rule": {"graph": {"format": "multigrad", "version": 99}}},
        {"rule": {"graph": {"format": "pickle"}}},
        {"rule": {"name": "band", "graph": None}},
        {"params": [1.0]},
        {"backend": "os.system"},
    ],
    ids=["newer", "another format", "no graph", "params", "backend"],
)
def test_a_malformed_model_file_is_refused_by_name(
    network: Any, tmp_path: Path, change: dict[str, Any]
) -> None:
    model = network.build(xk.Activation("Heaviside", rule=band, name="gate"))
    model.save(tmp_path / "model.keras")
    file = change_config(tmp_path / "model.keras", lambda config: config.update(change))
    with pytest.raises(xg.FormatError, match="layer 'gate'"):
        keras.saving.load_model(file)
    network.check(model, network.surrogates["rectangular"])


def test_a_file_whose_backend_is_not_installed_loads_with_a_warning(
    network: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network.build(xk.Activation("Heaviside", "triangular", backend="numpy", name="gate"))
    model.save(tmp_path / "model.keras")
    monkeypatch.setattr("multigrad.keras.config.load_backend", refuse_numpy)
    with pytest.warns(UserWarning, match=r"'gate' was saved to run in 'numpy'.*pip install"):
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("gate").backend is None
    network.check(loaded, network.surrogates["triangular"])


def refuse_numpy(name: str) -> Any:
    raise xg.BackendNotFound(f"backend {name!r} needs it: pip install '{name}'")


# Model files of each release, written on TensorFlow, load and train on each Keras backend.


@pytest.mark.parametrize("file", [*releases.HERE.glob("*/keras/*.keras")], ids=lambda f: f.stem)
def test_a_model_file_predicts_and_trains_the_same(file: Path) -> None:
    assert "window" not in xg.rules()
    model = keras.saving.load_model(file, safe_mode=True)
    found = releases.compute_keras(model)
    with np.load(file.with_name(f"{keras.config.backend()}.npz")) as numbers:
        for what, array in found.items():
            expected = numbers[f"{file.stem}/{what}"]
            np.testing.assert_allclose(array, expected, rtol=0, atol=1e-6)
