"""The activation in every style of Keras: each model trains as with a custom gradient written by
hand for the framework.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..conftest import DISTINCT_MODES, WHOLE
from ..styles import KERAS_BACKEND, RULE, STYLES, WIDTH, Trial, distance

keras: Any = pytest.importorskip("keras")

pytestmark = pytest.mark.needs("keras")


@pytest.fixture
def trial() -> Trial:
    return Trial()


@pytest.mark.parametrize("style", STYLES)
def test_each_style_trains_as_with_a_gradient_written_by_hand(
    xk: ModuleType, trial: Trial, style: str
) -> None:
    trial.check(style, trial.build(style, xk.activation("Tanh", **RULE)))


@pytest.mark.parametrize("mode", DISTINCT_MODES[1:], indirect=True)
@pytest.mark.parametrize("style", ["gru", "nested", *(["unrolled_cell"] if WHOLE else [])])
def test_each_way_of_running_trains_the_same(
    xk: ModuleType, trial: Trial, style: str, mode: dict[str, Any]
) -> None:
    trial.check(style, trial.build(style, xk.activation("Tanh", **RULE), **mode))


@pytest.mark.parametrize("style", ["conv", "lstm", "cell", "time_distributed"])
def test_styles_follow_use(xk: ModuleType, trial: Trial, style: str) -> None:
    model = trial.build(style, xk.activation("Tanh"))
    with xg.use("triangular", params={"width": WIDTH}):
        trial.check(style, model)


# In masked_lstm and time_distributed two layers share the object; cell holds it as a layer.
@pytest.mark.parametrize(
    "style", ["gru", "bidirectional", "masked_lstm", "time_distributed", "cell"]
)
def test_styles_saved_and_loaded_train_the_same(
    xk: ModuleType, trial: Trial, style: str, tmp_path: Path
) -> None:
    model = trial.build(style, xk.activation("Tanh", rule="triangular"))
    for layer in find_activations(model):
        layer.params["width"].assign(WIDTH)
    outputs = model.predict(trial.x, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(loaded.predict(trial.x, verbose=0), outputs)
    assert {float(layer.params["width"].numpy()) for layer in find_activations(loaded)} == {WIDTH}
    trial.check(style, loaded)


def find_activations(model: Any) -> list[Any]:
    """Give the activation objects in a model, wherever they are."""
    import multigrad.keras as xk

    found = [layer for layer in model._flatten_layers() if isinstance(layer, xk.Activation)]
    assert found
    return found


@pytest.mark.parametrize("style", ["dense", "conv", "nested"])
def test_a_clone_and_a_model_from_its_config_train_the_same(
    xk: ModuleType, trial: Trial, style: str
) -> None:
    model = trial.build(style, xk.activation("Tanh", **RULE))
    again = type(model).from_config(model.get_config())
    for copy in (keras.models.clone_model(model), again):
        copy.compile(keras.optimizers.SGD(0.5), "mse")
        trial.check(style, copy)


def test_a_shared_object_is_one_object(xk: ModuleType, trial: Trial) -> None:
    act = xk.activation("Tanh", rule="triangular")
    model = trial.build("masked_lstm", act)
    act.params["width"].assign(WIDTH)
    trial.check("masked_lstm", model)


# --- what a model says of its params --------------------------------------------------------------


def test_params_are_state_beside_the_weights(xk: ModuleType, trial: Trial) -> None:
    model = trial.build("dense", xk.activation("Tanh", rule="triangular"))
    assert model.count_params() == sum(w.size for w in trial.weights)
    (layer,) = find_activations(model)
    assert next(iter(layer.non_trainable_variables)).name == "width"
    assert layer.trainable_variables == []
    weights = model.get_weights()
    layer.params["width"].assign(WIDTH)
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    model.set_weights(weights)
    trial.check("dense", model)


def test_a_frozen_model_leaves_its_weights(xk: ModuleType, trial: Trial) -> None:
    model = trial.build("dense", xk.activation("Tanh", **RULE))
    model.layers[0].trainable = False
    model.compile(keras.optimizers.SGD(0.5), "mse")
    model.fit(trial.x, np.ones((6, 5, 1), np.float32), verbose=0)
    first, *_, last = (keras.ops.convert_to_numpy(layer.kernel) for layer in model.layers)
    np.testing.assert_array_equal(first, trial.weights[0].astype(np.float32))
    assert np.abs(last - trial.weights[2]).max() > 1e-3


# --- dtypes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float16", "bfloat16"])
def test_an_activation_keeps_the_dtype_of_the_layer_that_holds_it(
    xk: ModuleType, trial: Trial, policy: str
) -> None:
    act = xk.activation("Tanh", **RULE)  # of its own policy, float32
    layer = keras.layers.Dense(3, activation=act, dtype=policy)
    model = keras.Sequential([keras.Input((5, 4)), layer, keras.layers.Dense(1, dtype=policy)])
    outputs = layer(trial.x)
    assert keras.backend.standardize_dtype(outputs.dtype) == layer.compute_dtype
    model.compile(keras.optimizers.SGD(0.5), "mse")
    before = keras.ops.convert_to_numpy(layer.kernel).astype(np.float32)
    model.fit(trial.x, np.ones((6, 5, 1), np.float32), verbose=0)
    after = keras.ops.convert_to_numpy(layer.kernel).astype(np.float32)
    assert np.isfinite(after).all() and np.abs(after - before).max() > 1e-3


def test_integer_inputs_are_refused_by_the_rules_name(xk: ModuleType) -> None:
    layer = xk.Activation("Tanh", rule="triangular", dtype="int32")
    with pytest.raises(xg.GradientError, match="rule 'triangular'"):
        layer(keras.ops.convert_to_tensor([1, 2, 3], "int32"))
    with pytest.raises(xg.GradientError, match="rule 'triangular'"):
        layer(keras.Input((3,), dtype="int32"))


@pytest.mark.parametrize("when", ["before fit", "after fit"])
def test_a_quantized_model_predicts_with_the_activation(
    xk: ModuleType, trial: Trial, when: str
) -> None:
    model = trial.build("dense", xk.activation("Tanh", **RULE))
    if when == "after fit":
        trial.train(model)
    before = model.predict(trial.x, verbose=0)
    model.quantize("int8")
    after = model.predict(trial.x, verbose=0)
    assert 0 < np.abs(after - before).max() < 0.05
    assert np.abs(after).max() > 0.1


# --- random rules ---------------------------------------------------------------------------------


@pytest.mark.parametrize("unroll", [True, False])
def test_a_random_rule_in_a_recurrent_layer_draws_anew_or_says_that_it_cannot(
    xk: ModuleType, trial: Trial, unroll: bool
) -> None:
    act = xk.activation("Tanh", rule="noise", params={"sigma": 0.5})
    recurrent = keras.layers.SimpleRNN(6, activation=act, unroll=unroll)
    model = keras.Sequential([keras.Input((5, 4)), recurrent])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    if KERAS_BACKEND == "jax" and not unroll:
        with pytest.raises(xg.GradientError, match=r"rule 'noise' draws .* unroll=True"):
            trial.train(model)
    else:
        assert distance(trial.train(model), trial.train(model)) > 1e-3
