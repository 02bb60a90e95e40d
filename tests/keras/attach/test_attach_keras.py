"""Rules on Keras models that exist: they act where they are meant, numbers stay, and `detach` gives
the model back.

A rule that hands the gradient on makes an activation the identity for it: so the oracle of a place
is the same model with no activation there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import RuleError
from multigrad.models.attach import attach

from ...harness.models.models_keras import pull, relevance
from ...support.threads import on_threads, race

keras: Any = pytest.importorskip("keras")
layers: Any = keras.layers
xk: Any = pytest.importorskip("multigrad.keras")

pytestmark = pytest.mark.needs("keras")
RNG = np.random.default_rng(5)
X = RNG.normal(size=(3, 6)).astype(np.float32)
IMAGES = RNG.normal(size=(2, 6, 6, 2)).astype(np.float32)
STEPS = RNG.normal(size=(2, 4, 3)).astype(np.float32)
PASS = "keras_test_pass"


@pytest.fixture(autouse=True)
def registered() -> None:
    """A rule that hands the gradient on, registered while a test runs."""

    @xg.register(PASS)
    def handed_on(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out


def run(model: Any, x: Any) -> tuple[Any, Any]:
    """Give a model's outputs, and the gradient of their weighted sum by its input."""
    return pull(model, x, relevance)


def make_custom(act: str) -> Any:
    """Give a layer of somebody's own whose call calls Keras."""
    from keras.ops import relu as imported

    class Custom(layers.Layer):
        def call(self, inputs: Any) -> Any:
            if act == "linear":
                return inputs + inputs
            return keras.activations.relu(inputs) + imported(inputs)

    return Custom()


def make_subclass(act: str) -> Any:
    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = layers.Dense(4)

        def call(self, inputs: Any) -> Any:
            y = self.inner(inputs)
            return keras.ops.relu(y) if act == "relu" else y

    return Model()


def stack(*parts: Any) -> Any:
    return keras.Sequential(list(parts))


def functional(act: str) -> Any:
    inputs = keras.Input((6,))
    y = layers.Dense(5)(inputs)
    if act == "relu":
        y = keras.ops.relu(y)
        y = keras.activations.relu(y - 0.25)
    else:
        y = y - 0.25
    return keras.Model(inputs, layers.Dense(2)(y))


def nested(act: str) -> Any:
    inner = keras.Sequential([layers.Dense(6, activation=act), layers.Dense(6)])
    inputs = keras.Input((6,))
    return keras.Model(inputs, inner(inner(inputs)))  # shared: called twice


PLACES: dict[str, tuple[Callable[[str], Any], Any]] = {
    "activation=": (lambda act: stack(layers.Dense(5, activation=act), layers.Dense(2)), X),
    "ReLU": (
        lambda act: stack(layers.Dense(5), layers.ReLU() if act == "relu" else layers.Identity()),
        X,
    ),
    "Activation": (lambda act: stack(layers.Dense(5), layers.Activation(act)), X),
    "ReLU with a ceiling and a slope": (
        lambda act: stack(
            layers.Dense(5), layers.ReLU(1.0, 0.1) if act == "relu" else layers.Identity()
        ),
        X,
    ),
    "convolution": (
        lambda act: stack(layers.Conv2D(3, 3, activation=act, padding="same"), layers.Flatten()),
        IMAGES,
    ),
    "EinsumDense": (lambda act: stack(layers.EinsumDense("ab,bc->ac", 4, activation=act)), X),
    "keras.ops nodes": (functional, X),
    "a layer's call": (lambda act: stack(layers.Dense(5), make_custom(act)), X),
    "a model's call": (lambda act: stack(make_subclass(act)), X),
    "nested and shared": (nested, X),
    "TimeDistributed": (
        lambda act: stack(layers.TimeDistributed(layers.Dense(3, activation=act))),
        STEPS,
    ),
    # The first step has no state that is not 0, and one step has no other.
    "recurrent": (
        lambda act: stack(layers.SimpleRNN(3, activation=act, return_sequences=True)),
        STEPS,
    ),
}


def build_equal(make: Callable[[str], Any], x: Any) -> tuple[Any, Any]:
    """Give a model with relu and one with none, with equal weights."""
    relu, linear = make("relu"), make("linear")
    relu(x), linear(x)
    weights = [RNG.normal(size=w.shape).astype(np.float32) for w in relu.weights]
    relu.set_weights(weights)
    linear.set_weights(weights)
    return relu, linear


@pytest.mark.parametrize("place", PLACES)
def test_a_rule_acts_wherever_an_operation_is_called(place: str) -> None:
    make, x = PLACES[place]
    model, linear = build_equal(make, x)
    before, own = run(model, x)
    with xk.attach(model, {"relu": PASS}) as handle:
        y, grad = run(model, x)
        assert handle.rows[0].kind == "operation"
    np.testing.assert_array_equal(y, before)
    np.testing.assert_allclose(grad, run(linear, x)[1], rtol=2e-5, atol=1e-5)
    assert np.abs(grad - own).max() > 1e-3
    after = run(model, x)
    np.testing.assert_array_equal(after[0], before)
    np.testing.assert_array_equal(after[1], own)


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_a_rule_acts_in_the_gates_of_recurrent_layers(kind: str) -> None:
    def build(act: str, gate: str) -> Any:
        layer = getattr(keras.layers, kind)(3, activation=act, recurrent_activation=gate)
        return keras.Sequential([keras.Input((4, 3)), layer])

    model, other = build("tanh", "sigmoid"), build("relu", "hard_sigmoid")
    other.set_weights(model.get_weights())
    before = run(model, STEPS)
    with xk.attach(model, {("tanh", "sigmoid"): xg.get("clip_norm").with_params(max_norm=1e-9)}):
        y, grad = run(model, STEPS)
    np.testing.assert_allclose(y, before[0], rtol=1e-6)
    assert np.abs(before[1]).max() > 1e-3
    assert np.abs(grad).max() < 1e-6


SELECTORS: dict[str, Any] = {
    "name": "act",
    "pattern": "a?t",
    "type": "ReLU",
    "predicate": lambda layer: layer.name == "act",
    "predicate of the name": lambda name, layer: name == "act",
    "operation": "relu",
    "function": "ops.relu",
    "activation": "activations.relu",
    "tuple": ("act", "ac*"),
}


@pytest.mark.parametrize("how", SELECTORS)
def test_a_layer_is_selected_in_each_way(how: str) -> None:
    named = {
        "ReLU": layers.ReLU,
        "ops.relu": keras.ops.relu,
        "activations.relu": keras.activations.relu,
    }
    selector = SELECTORS[how]
    selector = named.get(selector, selector) if isinstance(selector, str) else selector

    def make(act: str) -> Any:
        middle = layers.ReLU(name="act") if act == "relu" else layers.Identity()
        return keras.Sequential([layers.Dense(5), middle, layers.Dense(2)])

    model, linear = build_equal(make, X)
    with attach(model, {selector: PASS}) as handle:
        np.testing.assert_allclose(run(model, X)[1], run(linear, X)[1], rtol=1e-5, atol=1e-6)
    assert len(handle) == 1
    assert "act" in repr(handle) or "relu" in repr(handle)


def test_names_of_nested_layers_are_dotted_where_one_stands_twice() -> None:
    def block(name: str) -> Any:
        parts = [layers.Dense(6, name="dense"), layers.ReLU(name="act")]
        return keras.Sequential([keras.Input((6,)), *parts], name=name)

    model = keras.Sequential([keras.Input((6,)), block("one"), block("two")])
    with xk.attach(model, {"two.act": PASS}) as handle:
        assert [row.name for row in handle.rows] == ["two.act"]
    with xk.attach(model, {"*.act": PASS}) as handle:
        assert [row.name for row in handle.rows] == ["one.act", "two.act"]
    with pytest.raises(xg.errors.RuleValueError, match=r"did you mean.*two\.act"):
        xk.attach(model, {"two.atc": PASS})
    with xk.attach(model, {"one": PASS}) as handle:
        _, grad = run(model.get_layer("one"), X)
        np.testing.assert_array_equal(
            grad, relevance(X)
        )  # the whole block's gradient is the rule's


def test_weights_keep_their_own_gradients_under_the_rule_of_their_layer() -> None:
    zero = xg.get("clip_norm").with_params(max_norm=1e-12)
    parts = [layers.Dense(4, name="first"), layers.Dense(4, name="last")]
    model = keras.Sequential([keras.Input((6,)), *parts])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    target, before = np.zeros((3, 4), np.float32), model.get_weights()
    model.fit(X, target, batch_size=3, verbose=0)
    plain = model.get_weights()
    model.set_weights(before)
    with xk.attach(model, {"last": zero}):
        model.fit(X, target, batch_size=3, verbose=0)
    ruled = model.get_weights()
    for i in (2, 3):  # those of the layer with the rule
        np.testing.assert_allclose(ruled[i], plain[i], rtol=1e-5)
    for i in (0, 1):  # those before it
        np.testing.assert_allclose(ruled[i], before[i], atol=1e-6)
        assert np.abs(plain[i] - before[i]).max() > 1e-3


def test_an_operation_of_another_model_stays_as_it_is() -> None:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(6, activation="relu")])
    other = keras.Sequential([keras.Input((6,)), layers.ReLU()])
    expected = run(other, X)[1]
    found: list[Any] = []
    with xk.attach(model, {"relu": PASS}):
        np.testing.assert_array_equal(run(other, X)[1], expected)
        np.testing.assert_array_equal(run(keras.ops.relu, X)[1], expected)
        on_threads(lambda x: found.append(run(other, x)[1]), X)
        model(X)
        np.testing.assert_array_equal(run(other, X)[1], expected)
    np.testing.assert_array_equal(found[0], expected)


def test_a_model_made_of_the_layers_has_the_rules_too() -> None:
    inputs = keras.Input((6,))
    features = layers.Dense(5, activation="relu", name="features")(inputs)
    model = keras.Model(inputs, layers.Dense(2)(keras.ops.relu(features)))
    with xk.attach(model, {"relu": PASS}):
        part = keras.Model(model.inputs, model.get_layer("features").output)
        grad = run(part, X)[1]
    kernel = model.get_layer("features").get_weights()[0]
    np.testing.assert_allclose(grad, relevance(X @ kernel) @ kernel.T, rtol=1e-5)


def test_layers_computed_anew_in_backward_have_the_rules_there() -> None:
    def make(act: str) -> Any:
        with keras.RematScope(mode="full"):
            middle = layers.Dense(5, activation=act)
        return keras.Sequential([layers.Dense(6), middle, layers.Dense(2)])

    model, linear = build_equal(make, X)
    with xk.attach(model, {"relu": PASS}):
        np.testing.assert_allclose(run(model, X)[1], run(linear, X)[1], rtol=1e-5, atol=1e-6)


def test_a_rule_acts_under_losses_that_know_logits() -> None:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(2, activation="sigmoid")])
    model.compile(keras.optimizers.SGD(1.0), "binary_crossentropy")
    before = model.get_weights()
    with xk.attach(model, {"sigmoid": xg.get("clip_norm").with_params(max_norm=1e-12)}):
        model.fit(X, np.ones((3, 2), np.float32), verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], before[0], atol=1e-6)


def test_the_activation_of_one_layer_is_selected_by_its_name() -> None:
    parts = [layers.Dense(5, activation="relu", name=n) for n in ("hidden", "other")]
    model = keras.Sequential([keras.Input((6,)), *parts, layers.Dense(3)])
    own, config = run(model, X)[1], str(model.get_config())
    kernels = [layer.get_weights()[0] for layer in model.layers]
    z = X @ kernels[0] + parts[0].get_weights()[1]
    y = np.maximum(z, 0.0) @ kernels[1]
    expected = relevance(y @ kernels[2]) @ kernels[2].T * (y > 0) @ kernels[1].T @ kernels[0].T
    with xk.attach(model, {"hidden.activation": PASS}) as handle:
        assert [(row.name, row.kind) for row in handle.rows] == [("hidden.activation", "function")]
        np.testing.assert_allclose(run(model, X)[1], expected, rtol=1e-4, atol=1e-6)
        assert str(model.get_config()) == config
        with pytest.raises(RuleError, match="'relu' has a rule already"):
            xk.attach(model, {"relu": PASS})
        with xk.attach(model, {"other": PASS}):
            model(X)
    np.testing.assert_array_equal(run(model, X)[1], own)


@pytest.mark.parametrize("path", ["cell", "cell.lstm_cell"])
def test_the_activation_of_a_recurrent_layer_is_that_of_its_cell(path: str) -> None:
    def zero(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * 0.0

    x = np.cos(np.arange(24, dtype=np.float32)).reshape(2, 4, 3)
    model = keras.Sequential([keras.Input((4, 3)), layers.LSTM(3, name="cell")])
    assert model.layers[0].cell.name.startswith("lstm_cell")
    own = run(model, x)[1]
    found = []
    path = path.replace("lstm_cell", model.layers[0].cell.name)
    for selector in (f"{path}.activation", "tanh", f"{path}.recurrent_activation", "sigmoid"):
        with xk.attach(model, {selector: zero}):
            found.append(run(model, x)[1])
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[2], found[3])
    assert np.abs(found[0] - own).max() > 1e-4 < np.abs(found[2] - own).max()
    np.testing.assert_array_equal(run(model, x)[1], own)


def test_an_activation_that_is_a_layer_is_selected_as_the_activation_of_its_holder() -> None:
    dense = layers.Dense(3, activation=layers.LeakyReLU(name="leaky"), name="dense")
    model = keras.Sequential([keras.Input((6,)), dense])
    grads = []
    for selector in ("leaky", "dense.leaky", "dense.activation"):
        with xk.attach(model, {selector: PASS}):
            grads.append(run(model, X)[1])
    np.testing.assert_array_equal(grads[0], grads[1])
    np.testing.assert_array_equal(grads[0], grads[2])


@pytest.mark.parametrize("selector", ["gate", "relu"])
def test_two_threads_that_attach_at_once_give_a_place_one_rule(selector: str) -> None:
    for _ in range(10):
        gate = layers.ReLU(name="gate")
        model = keras.Sequential([layers.Input((6,)), layers.Dense(3), gate])
        handles, errors = race(lambda model=model: xg.attach(model, {selector: "guided"}))
        assert len(handles) == 1
        assert [error.handle for error in errors] == handles
        handles[0].detach()
        assert "call" not in vars(gate)


def test_a_layer_with_rules_is_not_captured_without_them() -> None:
    model = keras.Sequential([layers.Input((6,)), layers.Dense(3), layers.ReLU()])
    with xg.attach(model, {layers.ReLU: "guided"}):
        apply, parameters = xg.convert(model, to="numpy")
        with pytest.raises(xg.errors.TraceError, match=r"rules of xg.attach .*detach them first"):
            apply(parameters, X)
