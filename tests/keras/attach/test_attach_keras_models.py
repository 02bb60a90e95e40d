"""Keras models with rules attached, as people keep, train and save them; and what is refused."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import GradientError, RuleError, RuleTypeError, RuleValueError

from ...harness.models.models_keras import (
    NONE,
    RULE,
    WEIGHTS,
    X,
    Y,
    assert_close,
    compile_gradient,
    differ,
    fit,
    plain,
    registered,  # noqa: F401 (a fixture)
    trained,
)

keras: Any = pytest.importorskip("keras")

xk: Any = pytest.importorskip("multigrad.keras")

pytestmark = [pytest.mark.needs("keras"), pytest.mark.usefixtures("registered")]


def test_fit_follows_attach_and_detach(mode: dict[str, Any]) -> None:
    model = plain(**mode)
    own = fit(model)  # compiled before there is a rule
    model.set_weights(WEIGHTS)
    handle = xk.attach(model, {"relu": RULE})
    ruled = fit(model)
    assert_close(ruled, trained())
    handle.detach()
    model.set_weights(WEIGHTS)
    assert_close(fit(model), own)
    assert differ(own, ruled)


def test_rules_attached_before_compile_act() -> None:
    model = plain()
    with xk.attach(model, {keras.layers.ReLU: RULE}):
        model.compile(keras.optimizers.SGD(0.25), "mse")
        ruled = fit(model)
    assert_close(ruled, trained())


def test_steps_of_a_model_around_the_one_that_is_changed_follow() -> None:
    inner = plain()
    start = inner.get_weights()
    outer = keras.Sequential([keras.Input((6,)), inner])
    outer.compile(keras.optimizers.SGD(0.25), "mse")
    own = fit(outer)
    inner.set_weights(start)
    with xk.attach(inner, {"relu": RULE}):
        ruled = fit(outer)
    assert_close(ruled, trained())
    inner.set_weights(start)
    assert_close(fit(outer), own)


def test_a_loaded_model_takes_rules(tmp_path: Path) -> None:
    plain().save(tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")
    with xk.attach(model, {"relu": RULE}):
        assert_close(fit(model), trained())


def contents(path: Path) -> dict[str, bytes]:
    """Give what a file of Keras holds, without the times in it."""
    if not zipfile.is_zipfile(path):
        return {"": path.read_bytes()}
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist() if name != "metadata.json"}


def test_weights_files_and_configs_are_those_of_before(tmp_path: Path) -> None:
    def state(name: str) -> tuple[Any, ...]:
        model.save_weights(tmp_path / f"{name}.weights.h5")
        model.save(tmp_path / f"{name}.keras")
        said: list[str] = []
        model.summary(print_fn=lambda text, **_: said.append(text))
        files = [contents(tmp_path / f"{name}{end}") for end in (".weights.h5", ".keras")]
        names = [(w.path, w.shape, w.trainable) for w in model.weights]
        return names, model.count_params(), model.get_config(), said, files

    model = plain()
    fit(model)
    before, twice = state("before"), state("twice")
    weights = model.get_weights()
    with xk.attach(model, {"relu": RULE, "b": NONE}):
        during = state("during")
        copy = pickle.loads(pickle.dumps(model))
        for ours, theirs in zip(model.get_weights(), weights, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    after = state("after")
    assert during[:4] == before[:4] == after[:4]
    if before[4] == twice[4]:  # Keras itself writes the same bytes
        assert during[4] == before[4] == after[4]
    assert not any("call" in vars(layer) for layer in (copy, *copy.layers, model, *model.layers))


def test_handles_come_off_in_any_order() -> None:
    model = plain()
    start = model.get_weights()
    first = xk.attach(model, {"relu": RULE})
    second = xk.attach(model, {"c": NONE})
    third = xk.attach(model, {"tanh": RULE, "b": NONE})
    first.detach()
    first.detach()
    third.detach()
    assert_close(fit(model)[:4], start[:4])  # no gradient passes the last layer
    second.detach()
    model.set_weights(start)
    assert_close(fit(model), fit(plain()))
    assert "call" not in vars(model)
    assert keras.ops.relu.__module__.startswith("keras")
    assert not second.is_attached


def test_compiled_functions_of_ones_own_follow() -> None:
    model = plain()
    compute, other = compile_gradient(model), compile_gradient(plain())
    own, others = compute(X), other(X)
    assert np.abs(own).max() > 1e-4
    for _ in range(2):
        with xk.attach(model, {"a": NONE}):
            np.testing.assert_array_equal(compute(X), 0.0 * own)
        np.testing.assert_allclose(other(X), others, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(compute(X), own, rtol=1e-5, atol=1e-7)


@pytest.mark.backends("torch")
@pytest.mark.skipif(
    os.environ.get("KERAS_BACKEND") != "torch", reason="Dynamo reads Keras on torch"
)
def test_dynamo_reads_an_attached_model_whole(backend: Any) -> None:
    torch = pytest.importorskip("torch")

    model = plain()
    for rules in ({"relu": RULE}, {"a": NONE, "relu": RULE}):
        with xk.attach(model, rules):
            whole = torch.compile(lambda x: model(x), backend="aot_eager", fullgraph=True)
            found, expected = (keras.ops.convert_to_tensor(X).requires_grad_() for _ in "12")
            whole(found).sum().backward()
            model(expected).sum().backward()
            torch.testing.assert_close(found.grad, expected.grad)


# What no rule goes on in a Keras model: said, and nothing is changed.


class Two:
    """Layers that cannot have a rule for the whole of them."""

    @staticmethod
    def add() -> Any:
        inputs = keras.Input((6,))
        return keras.Model(inputs, keras.layers.Add(name="it")([inputs, inputs]))

    @staticmethod
    def embedding() -> Any:
        inputs = keras.Input((6,), dtype="int32")
        return keras.Model(inputs, keras.layers.Embedding(9, 2, name="it")(inputs))

    @staticmethod
    def several() -> Any:
        inputs = keras.Input((6, 2))
        outputs = keras.layers.LSTM(2, return_state=True, name="it")(inputs)
        return keras.Model(inputs, outputs)


@pytest.mark.parametrize(
    ("make", "x", "match"),
    [
        (Two.add, X, "'it' .Add. takes 2 tensors"),
        (Two.embedding, np.ones((2, 6), np.int32), "'it' .Embedding. takes no tensor"),
        (Two.several, np.ones((2, 6, 2), np.float32), "'it' .LSTM. gives"),
    ],
)
def test_a_layer_of_several_tensors_or_none_is_refused(make: Any, x: Any, match: str) -> None:
    model = make()
    with xk.attach(model, {"it": NONE}), pytest.raises(RuleTypeError, match=match):
        model(x)
    model(x)


REFUSED: dict[str, tuple[dict[Any, Any], type[Exception], str]] = {
    "nothing matches": ({"relu": RULE, "de": RULE}, RuleValueError, "matches no layer"),
    "a class": ({keras.layers.Softmax: RULE}, RuleValueError, "did you mean 'softmax'"),
    "near names": ({"rleu": RULE}, RuleValueError, "did you mean 'relu'"),
    "two rules": ({"a": RULE, "?": NONE}, RuleValueError, "selected twice"),
    "an operation under two": ({"abs": RULE, "absolute": NONE}, RuleValueError, "selected twice"),
    "a class by its name": ({"dense": RULE}, RuleValueError, "class Dense are keras's: give that"),
    "unknown rule": ({"relu": "gided"}, RuleError, "no rule named"),
    "no mapping": ({}, RuleTypeError, "at least one"),
    "no selector": ({3: RULE}, RuleTypeError, "selects nothing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_error_in_one_selector_changes_nothing(case: str) -> None:
    from keras.src import backend as called

    model, before = plain(), called.nn.relu
    rules, error, match = REFUSED[case]
    with pytest.raises(error, match=match):
        xk.attach(model, {"c": NONE, **rules} if rules else rules)
    assert called.nn.relu is before
    assert not any("call" in vars(layer) for layer in (model, *model.layers))


def test_a_second_handle_for_the_same_is_refused() -> None:
    model = plain()
    xk.attach(model, {"relu": RULE, "c": RULE})  # the handle is not kept
    with pytest.raises(RuleValueError, match="'relu' has a rule already"):
        xk.attach(model, {"relu": NONE})
    with pytest.raises(RuleValueError, match="'c' has a rule already") as refusal:
        xk.attach(model, {"c": NONE})
    refusal.value.handle.detach()
    xk.attach(model, {"relu": NONE, "c": NONE}).detach()


def test_functions_that_no_rule_goes_on_are_refused() -> None:
    native = {
        "torch": "torch.nn.functional:relu",
        "jax": "jax.nn:relu",
        "tensorflow": "tensorflow.nn:relu",
    }[keras.config.backend()]
    module, name = native.split(":")
    found: Any = __import__(module.split(".")[0])
    for part in module.split(".")[1:]:
        found = getattr(found, part)
    with pytest.raises(RuleValueError, match=r"write keras\.ops\.relu"):
        xk.attach(plain(), {getattr(found, name): NONE})
    with pytest.raises(RuleValueError, match=r"no rule goes on keras\.ops\.add"):
        xk.attach(plain(), {keras.ops.add: NONE})
    with pytest.raises(RuleTypeError, match="expected a model or layer of Keras"):
        xk.attach(lambda x: x, {"relu": NONE})


def test_an_operation_that_is_never_called_is_an_error_that_lists_those_that_are() -> None:
    model = plain()
    with xk.attach(model, {"gelu": RULE}):
        with pytest.raises(RuleValueError, match=r"calls no operation 'gelu'.*it calls: .*relu"):
            model(X)
        with pytest.raises(RuleValueError, match="calls no operation 'gelu'"):
            model.fit(X, Y, verbose=0)
    fit(model)  # with all of its weights


def test_layers_that_a_model_makes_later_are_not_missed() -> None:
    class Late(keras.layers.Layer):
        def build(self, input_shape: Any) -> None:
            self.inner = keras.layers.ReLU(name="inner")

        def call(self, inputs: Any) -> Any:
            return self.inner(inputs)

    model = keras.Sequential([keras.layers.ReLU(name="first"), Late()])
    with (
        xk.attach(model, {keras.layers.ReLU: RULE}),
        pytest.raises(RuleValueError, match=r"made layer .*inner.* only when it was called"),
    ):
        model(X)
    with xk.attach(model, {keras.layers.ReLU: RULE}) as handle:
        model(X)
        assert len(handle) == 2
    other = keras.Sequential([keras.layers.ReLU(name="first"), Late()])
    with xk.attach(other, {"first": RULE}):
        other(X)
    third = keras.Sequential([Late()])
    with xk.attach(third, {"relu": NONE}):
        y, pull = xg.vjp(third, keras.ops.convert_to_tensor(X))
        assert np.abs(keras.ops.convert_to_numpy(pull(y)[0])).max() == 0


def test_a_kernel_that_hides_an_operation_is_refused() -> None:
    inputs = keras.Input((4, 6))
    y = keras.layers.MultiHeadAttention(2, 3)(inputs, inputs)
    model = keras.Model(inputs, keras.layers.Softmax()(y))
    with (
        xk.attach(model, {"softmax": RULE}),
        pytest.raises(RuleValueError, match="computes 'softmax' in one kernel"),
    ):
        model(np.ones((1, 4, 6), np.float32))


@pytest.mark.parametrize("rule", ["triangular", "pass"])
@pytest.mark.parametrize("way", ["call", "predict", "fit"])
def test_a_rule_that_does_not_fit_is_an_error_at_the_first_call(rule: str, way: str) -> None:
    layers = [keras.layers.Dense(units, name=f"to_{units}") for units in (4, 1)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile("sgd", "mse")
    before = model.get_weights()
    for name, shapes in (("to_4", r"4\) of \(\w+, 6\)"), ("to_1", r"1\) of \(\w+, 4\)")):
        words = rf"layer '{name}' \(Dense\) makes shape \(\w+, {shapes}, and rule '{rule}'.*fits"
        with xk.attach(model, {name: rule}), pytest.raises(GradientError, match=words):
            if way == "fit":
                model.fit(X, np.ones((len(X), 1), np.float32), verbose=0)
            else:
                (model if way == "call" else model.predict)(X)
    for mine, its in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, its)
    model(X)


def test_a_selector_that_means_nothing_is_refused() -> None:
    model = plain()
    for rules, words in (
        ({"relu": None}, "'relu' has None instead of a rule"),
        ({keras.layers.Dense: None}, "has None instead of a rule"),
        ({(): RULE}, r"selector \(\) means nothing"),
        ({keras.layers.ReLU(): RULE}, "selector ReLU is a layer, and none of this model's"),
    ):
        with pytest.raises((RuleTypeError, RuleValueError), match=words):
            xk.attach(model, rules)
    with xk.attach(model, {model.get_layer("c"): RULE}) as handle:
        assert [row.name for row in handle.rows] == ["c"]


def test_activations_that_no_rule_goes_on_are_refused() -> None:
    inputs = keras.Input((3, 2))
    recurrent = keras.layers.LSTM(2, recurrent_activation="tanh", name="same")(inputs)
    own = keras.layers.Dense(2, activation=lambda x: x * 2.0, name="own")(recurrent)
    model = keras.Model(inputs, keras.layers.Dense(2, name="none")(own))
    for name, words in (
        ("none.activation", "layer 'none' .Dense. has no 'activation'"),
        ("own.activation", "'own.activation' is '<lambda>', which is no operation"),
        ("same.activation", "are both 'tanh', which cannot be told apart"),
        ("same.lstm_cell", "is the cell of layer 'same'"),
    ):
        with pytest.raises(RuleError, match=words):
            xk.attach(model, {name: RULE})
    with pytest.raises(RuleTypeError, match="reads what layers hold"):
        xk.attach(model, {"same.recurrent_activation": xg.attribution.epsilon()})
