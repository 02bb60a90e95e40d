"""What no rule goes on in a Keras model: said, and nothing is changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import GradientError, RuleError, RuleTypeError, RuleValueError

from ...harness.models.models_keras import (
    NONE,
    RULE,
    X,
    Y,
    fit,
    plain,
    registered,  # noqa: F401 (a fixture)
)

keras: Any = pytest.importorskip("keras")

xk: Any = pytest.importorskip("multigrad.keras")

pytestmark = [pytest.mark.needs("keras"), pytest.mark.usefixtures("registered")]


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
    "near names": ({"rleu": RULE}, RuleValueError, "did you mean 'relu'"),
    "two rules": ({"a": RULE, "?": NONE}, RuleValueError, "selected twice"),
    "an operation under two": ({"abs": RULE, "absolute": NONE}, RuleValueError, "selected twice"),
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
    with xk.attach(model, {"relu": RULE, "c": RULE}):
        with pytest.raises(RuleValueError, match="'relu' has a rule already"):
            xk.attach(model, {"relu": NONE})
        with pytest.raises(RuleValueError, match="'c' has a rule already"):
            xk.attach(model, {"c": NONE})


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
        with pytest.raises(RuleValueError, match=r"never came to operation 'gelu'.*called: .*relu"):
            model(X)
        with pytest.raises(RuleValueError, match="never came to operation 'gelu'"):
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
