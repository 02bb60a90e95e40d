"""The activation in every style of Keras: each model trains as with a custom gradient of Keras's
own, the oracle.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..conftest import DISTINCT_MODES

keras: Any = pytest.importorskip("keras")
xk: Any = pytest.importorskip("multigrad.keras")

pytestmark = pytest.mark.needs("keras")
layers = keras.layers
serializable = keras.saving.register_keras_serializable(package="multigrad_tests")
KERAS_BACKEND = os.environ.get("KERAS_BACKEND", "")
WIDTH = 2.0
RULE: dict[str, Any] = {"rule": "triangular", "params": {"width": WIDTH}}


# --- the oracle: tanh, whose derivative is max(1 - |x| / 2, 0) ------------------------------------


@keras.ops.custom_gradient
def native(x: Any) -> Any:
    """Give the function as Keras has it written."""

    def backward(*args: Any, upstream: Any = None) -> Any:
        cotangent = args[0] if upstream is None else upstream  # a keyword on torch
        return cotangent * keras.ops.maximum(1 - keras.ops.abs(x) / WIDTH, 0)

    return keras.ops.tanh(x), backward


@serializable
class ByHand(layers.Layer):
    """A layer around it, which Keras can clone and save."""

    def call(self, inputs: Any) -> Any:
        return native(inputs)


# --- the styles: each builds a model around an activation, or a layer that holds one --------------


def sequence(*parts: Any) -> Any:
    return keras.Sequential([keras.Input((5, 4)), *parts])


class Styles:
    """Models by name; `act` is what `activation=` takes."""

    def dense(self, act: Any) -> Any:
        return sequence(layers.Dense(6, activation=act), layers.Dense(1))

    def activation_layer(self, act: Any) -> Any:
        return sequence(layers.Dense(6), layers.Activation(act), layers.Dense(1))

    def conv(self, act: Any) -> Any:
        return sequence(layers.Conv1D(6, 3, activation=act))

    def separable_conv(self, act: Any) -> Any:
        return sequence(layers.SeparableConv1D(6, 3, activation=act))

    def simple_rnn(self, act: Any) -> Any:
        return sequence(layers.SimpleRNN(6, activation=act))

    def lstm(self, act: Any) -> Any:
        return sequence(layers.LSTM(6, activation=act, recurrent_activation=act))

    def gru(self, act: Any) -> Any:
        return sequence(layers.GRU(6, activation=act, recurrent_activation=act))

    def unrolled_lstm(self, act: Any) -> Any:
        recurrent = layers.LSTM(6, activation=act, recurrent_activation=act, unroll=True)
        return sequence(recurrent)

    def unknown_length(self, act: Any) -> Any:
        return keras.Sequential([keras.Input((None, 4)), layers.GRU(6, activation=act)])

    def bidirectional(self, act: Any) -> Any:
        return sequence(layers.Bidirectional(layers.SimpleRNN(6, activation=act)))

    def time_distributed(self, act: Any) -> Any:
        inner = layers.TimeDistributed(layers.Dense(6, activation=act))
        return sequence(inner, layers.TimeDistributed(layers.Activation(act)))

    def masked_lstm(self, act: Any) -> Any:
        return sequence(
            layers.Masking(), layers.Dense(4, activation=act), layers.LSTM(6, activation=act)
        )

    def nested(self, act: Any) -> Any:
        inputs = keras.Input((5, 4))
        inner = keras.Sequential([layers.Dense(6, activation=act), layers.Dense(4)])
        return keras.Model(inputs, layers.Add()([inner(inputs), inputs]))

    def reused(self, act: Any) -> Any:
        inputs, layer = keras.Input((5, 4)), layers.Activation(act)
        hidden = layer(layers.Dense(6)(inputs))
        return keras.Model(inputs, layer(layers.Dense(6)(hidden)))

    def subclass(self, act: Any) -> Any:
        class Model(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.first = layers.Dense(6)
                self.act = layers.Activation(act)
                self.last = layers.Dense(1)

            def call(self, inputs: Any, training: bool = False) -> Any:
                hidden = self.act(self.first(inputs))
                return self.last(hidden * 2 if training else hidden)

        return Model()

    def cell(self, act: Any) -> Any:
        return sequence(layers.RNN(make_cell(act)))

    def unrolled_cell(self, act: Any) -> Any:
        return sequence(layers.RNN(make_cell(act), unroll=True))


@serializable
class Cell(layers.Layer):
    """An RNN cell that holds a layer."""

    def __init__(self, act: Any, **options: Any) -> None:
        super().__init__(**options)
        self.state_size = self.output_size = 6
        self.inner, self.act = layers.Dense(6), act

    def build(self, input_shape: Any) -> None:
        self.inner.build((input_shape[0], input_shape[-1] + 6))

    def call(self, inputs: Any, states: Any, training: Any = None) -> Any:
        output = self.act(self.inner(keras.ops.concatenate([inputs, states[0]], axis=-1)))
        return output, [output]

    def get_config(self) -> dict[str, Any]:
        saved = keras.saving.serialize_keras_object(self.act)
        return {**super().get_config(), "act": saved}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return cls(**{**config, "act": keras.saving.deserialize_keras_object(config["act"])})


def make_cell(act: Any) -> Any:
    return Cell(act if isinstance(act, layers.Layer) else layers.Activation(act))


STYLES = [name for name in vars(Styles) if not name.startswith("_")]


class Trial:
    """The same data and the same initial weights for models that differ in their activation."""

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.x = rng.normal(size=(6, 5, 4)).astype(np.float32)
        self.x[:3, 3:] = 0  # masked, where a model masks
        self.rng = rng
        self.weights: list[Any] = []
        self.y: Any = None

    def build(self, style: str, act: Any, **options: Any) -> Any:
        """Give the compiled model of a style with the trial's weights."""
        model = getattr(Styles(), style)(act)
        if not model.built:
            model(self.x)
        model.compile(keras.optimizers.SGD(0.5), "mse", **options)
        return self.reset(model)

    def reset(self, model: Any) -> Any:
        if not self.weights:
            shapes = [tuple(weight.shape) for weight in model.trainable_weights]
            self.weights = [0.5 * self.rng.normal(size=shape) for shape in shapes]
        for weight, value in zip(model.trainable_weights, self.weights, strict=True):
            weight.assign(value)
        return model

    def train(self, model: Any, steps: int = 2) -> list[Any]:
        """Give the weights after steps of SGD towards 1."""
        self.reset(model)
        if self.y is None:
            self.y = np.ones(keras.ops.shape(model(self.x)), np.float32)
        x, y = self.x, self.y
        model.fit(x, y, batch_size=len(y), epochs=steps, shuffle=False, verbose=0)
        return [keras.ops.convert_to_numpy(weight) for weight in model.trainable_weights]

    def check(self, style: str, model: Any, tolerance: float = 2e-6) -> None:
        """Compare training with that of the same model around the hand-written function."""
        assert distance(self.train(model), train_by_hand(style)) < tolerance


@functools.cache
def train_by_hand(style: str) -> list[Any]:
    """Give the weights of a trial that the hand-written function has trained."""
    trial = Trial()
    expected = trial.train(trial.build(style, ByHand()))
    if KERAS_BACKEND == "torch":  # the numbers are the same on each, and here there is no trace
        plain = trial.train(trial.build(style, "tanh"))
        assert distance(expected, plain) > 1e-3  # else the true derivative would pass as well
    return expected


def distance(first: list[Any], second: list[Any]) -> float:
    pairs = zip(first, second, strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


# --- training -------------------------------------------------------------------------------------


@pytest.fixture
def trial() -> Trial:
    return Trial()


@pytest.mark.parametrize("style", STYLES)
def test_each_style_trains_as_with_a_gradient_written_by_hand(trial: Trial, style: str) -> None:
    trial.check(style, trial.build(style, xk.activation("Tanh", **RULE)))


@pytest.mark.parametrize("mode", DISTINCT_MODES[1:], indirect=True)
@pytest.mark.parametrize("style", ["gru", "nested", "unrolled_cell"])
def test_each_way_of_running_trains_the_same(
    trial: Trial, style: str, mode: dict[str, Any]
) -> None:
    trial.check(style, trial.build(style, xk.activation("Tanh", **RULE), **mode))


@pytest.mark.parametrize("style", ["conv", "lstm", "cell", "time_distributed"])
def test_styles_follow_use(trial: Trial, style: str) -> None:
    model = trial.build(style, xk.activation("Tanh"))
    with xg.use("triangular", params={"width": WIDTH}):
        trial.check(style, model)


# In masked_lstm and time_distributed two layers share the object; cell holds it as a layer.
@pytest.mark.parametrize(
    "style", ["gru", "bidirectional", "masked_lstm", "time_distributed", "cell"]
)
def test_styles_saved_and_loaded_train_the_same(trial: Trial, style: str, tmp_path: Path) -> None:
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
    found = [layer for layer in model._flatten_layers() if isinstance(layer, xk.Activation)]
    assert found
    return found


@pytest.mark.parametrize("style", ["dense", "conv", "nested"])
def test_a_clone_and_a_model_from_its_config_train_the_same(trial: Trial, style: str) -> None:
    model = trial.build(style, xk.activation("Tanh", **RULE))
    again = type(model).from_config(model.get_config())
    for copy in (keras.models.clone_model(model), again):
        copy.compile(keras.optimizers.SGD(0.5), "mse")
        trial.check(style, copy)


def test_a_shared_object_is_one_object(trial: Trial) -> None:
    act = xk.activation("Tanh", rule="triangular")
    model = trial.build("masked_lstm", act)
    act.params["width"].assign(WIDTH)
    trial.check("masked_lstm", model)


# --- what a model says of its params --------------------------------------------------------------


def test_params_are_state_beside_the_weights(trial: Trial) -> None:
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


def test_a_frozen_model_leaves_its_weights(trial: Trial) -> None:
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
    trial: Trial, policy: str
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


def test_integer_inputs_are_refused_by_the_rules_name() -> None:
    layer = xk.Activation("Tanh", rule="triangular", dtype="int32")
    with pytest.raises(xg.GradientError, match="rule 'triangular'"):
        layer(keras.ops.convert_to_tensor([1, 2, 3], "int32"))
    with pytest.raises(xg.GradientError, match="rule 'triangular'"):
        layer(keras.Input((3,), dtype="int32"))


@pytest.mark.parametrize("when", ["before fit", "after fit"])
def test_a_quantized_model_predicts_with_the_activation(trial: Trial, when: str) -> None:
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
    trial: Trial, unroll: bool
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
