"""Keras models with rules attached, as people keep, train and save them; and what is refused."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import RuleError, RuleTypeError, RuleValueError

pytestmark = pytest.mark.needs("keras")
RNG = np.random.default_rng(11)
X = RNG.normal(size=(8, 6)).astype(np.float32)
Y = RNG.normal(size=(8, 6)).astype(np.float32)
WEIGHTS = [0.4 * RNG.normal(size=size).astype(np.float32) for size in ((6, 6), (6,)) * 3]
NONE = "keras_test_none"
RULE = "rectangular"


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """A rule that hands nothing on, registered while a test runs."""

    @xg.register(NONE)
    def none(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return 0.0 * grad_out

    yield
    xg.unregister(NONE)


def build(middle: Callable[[], Any], **options: Any) -> Any:
    """Give a compiled model with two layers of a kind, the weights the same each time."""
    import keras

    dense = keras.layers.Dense
    layers = [dense(6, name="a"), middle(), dense(6, name="b"), middle(), dense(6, name="c")]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.set_weights(WEIGHTS)
    model.compile(keras.optimizers.SGD(0.25), "mse", **options)
    return model


def plain(**options: Any) -> Any:
    import keras

    return build(keras.layers.ReLU, **options)


def written(**options: Any) -> Any:
    import multigrad.keras as xk

    return build(lambda: xk.Activation("ReLU", RULE), **options)


def fit(model: Any) -> list[Any]:
    """Give the weights after one epoch of steps."""
    model.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    return model.get_weights()


def assert_close(ours: list[Any], theirs: list[Any]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def differ(ours: list[Any], theirs: list[Any]) -> bool:
    return max(np.abs(a - b).max() for a, b in zip(ours, theirs, strict=True)) > 1e-4


MODES: list[dict[str, Any]] = [{}, {"jit_compile": True}, {"run_eagerly": True}]


@pytest.mark.parametrize("options", MODES, ids=str)
def test_fit_follows_attach_and_detach(options: dict[str, Any]) -> None:
    import multigrad.keras as xk

    model = plain(**options)
    own = fit(model)  # compiled before there is a rule
    model.set_weights(WEIGHTS)
    handle = xk.attach(model, {"relu": RULE})
    ruled = fit(model)
    assert_close(ruled, fit(written()))
    handle.detach()
    model.set_weights(WEIGHTS)
    assert_close(fit(model), own)
    assert differ(own, ruled)


def test_rules_attached_before_compile_act() -> None:
    import keras

    import multigrad.keras as xk

    model = plain()
    with xk.attach(model, {keras.layers.ReLU: RULE}):
        model.compile(keras.optimizers.SGD(0.25), "mse")
        ruled = fit(model)
    assert_close(ruled, fit(written()))


def test_steps_of_a_model_around_the_one_that_is_changed_follow() -> None:
    import keras

    import multigrad.keras as xk

    inner = plain()
    start = inner.get_weights()
    outer = keras.Sequential([keras.Input((6,)), inner])
    outer.compile(keras.optimizers.SGD(0.25), "mse")
    own = fit(outer)
    inner.set_weights(start)
    with xk.attach(inner, {"relu": RULE}):
        ruled = fit(outer)
    assert_close(ruled, fit(written()))
    inner.set_weights(start)
    assert_close(fit(outer), own)


def test_a_loaded_model_takes_rules(tmp_path: Path) -> None:
    import keras

    import multigrad.keras as xk

    plain().save(tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")
    with xk.attach(model, {"relu": RULE}):
        assert_close(fit(model), fit(written()))


def contents(path: Path) -> dict[str, bytes]:
    """Give what a file of Keras holds, without the times in it."""
    if not zipfile.is_zipfile(path):
        return {"": path.read_bytes()}
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist() if name != "metadata.json"}


def test_weights_files_and_configs_are_those_of_before(tmp_path: Path) -> None:
    import multigrad.keras as xk

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
    import keras

    import multigrad.keras as xk

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


class Two:
    """Layers that cannot have a rule for the whole of them."""

    @staticmethod
    def add() -> Any:
        import keras

        inputs = keras.Input((6,))
        return keras.Model(inputs, keras.layers.Add(name="it")([inputs, inputs]))

    @staticmethod
    def embedding() -> Any:
        import keras

        inputs = keras.Input((6,), dtype="int32")
        return keras.Model(inputs, keras.layers.Embedding(9, 2, name="it")(inputs))

    @staticmethod
    def several() -> Any:
        import keras

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
    import multigrad.keras as xk

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

    import multigrad.keras as xk

    model, before = plain(), called.nn.relu
    rules, error, match = REFUSED[case]
    with pytest.raises(error, match=match):
        xk.attach(model, {"c": NONE, **rules} if rules else rules)
    assert called.nn.relu is before
    assert not any("call" in vars(layer) for layer in (model, *model.layers))


def test_a_second_handle_for_the_same_is_refused() -> None:
    import multigrad.keras as xk

    model = plain()
    with xk.attach(model, {"relu": RULE, "c": RULE}):
        with pytest.raises(RuleValueError, match="'relu' has a rule already"):
            xk.attach(model, {"relu": NONE})
        with pytest.raises(RuleValueError, match="'c' has a rule already"):
            xk.attach(model, {"c": NONE})


def test_functions_that_no_rule_goes_on_are_refused() -> None:
    import keras

    import multigrad.keras as xk

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
    import multigrad.keras as xk

    model = plain()
    with xk.attach(model, {"gelu": RULE}):
        with pytest.raises(RuleValueError, match=r"never came to operation 'gelu'.*called: .*relu"):
            model(X)
        with pytest.raises(RuleValueError, match="never came to operation 'gelu'"):
            model.fit(X, Y, verbose=0)
    fit(model)  # with all of its weights


def test_layers_that_a_model_makes_later_are_not_missed() -> None:
    import keras

    import multigrad.keras as xk

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
    import keras

    import multigrad.keras as xk

    inputs = keras.Input((4, 6))
    y = keras.layers.MultiHeadAttention(2, 3)(inputs, inputs)
    model = keras.Model(inputs, keras.layers.Softmax()(y))
    with (
        xk.attach(model, {"softmax": RULE}),
        pytest.raises(RuleValueError, match="computes 'softmax' in one kernel"),
    ):
        model(np.ones((1, 4, 6), np.float32))


def compile_gradient(model: Any) -> Callable[[], Any]:
    """Give a compiled function of one's own: the gradient of a model's input."""
    import keras

    backend, x = keras.config.backend(), keras.ops.convert_to_tensor(X)
    if backend == "torch":
        import torch

        forward = torch.compile(lambda x: model(x), backend="aot_eager")

        def compute() -> Any:
            given = x.detach().clone().requires_grad_()
            forward(given).sum().backward()
            return given.grad.numpy()

        return compute
    if backend == "jax":
        import jax

        gradient = jax.jit(jax.grad(lambda x: model(x).sum()))
        return lambda: np.asarray(gradient(x))
    import tensorflow as tf

    @tf.function
    def traced(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(model(x))
        return tape.gradient(y, x)

    return lambda: traced(x).numpy()


def test_compiled_functions_of_ones_own_follow() -> None:
    import multigrad.keras as xk

    model = plain()
    compute, other = compile_gradient(model), compile_gradient(plain())
    own, others = compute(), other()
    assert np.abs(own).max() > 1e-4
    for rule, expected in ((NONE, 0.0 * own), (RULE, None), (NONE, 0.0 * own)):
        with xk.attach(model, {"a": rule}):
            found = compute()
        np.testing.assert_allclose(other(), others, rtol=1e-5, atol=1e-7)
        if expected is not None:
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(compute(), own, rtol=1e-5, atol=1e-7)


def test_guided_backprop_of_a_model_of_somebody_else_is_its_formula() -> None:
    import keras

    import multigrad.keras as xk

    @xg.register("keras_test_guided", override=True)
    def guided(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return xg.xp.where((tin > 0) & (grad_out > 0), grad_out, 0.0)

    model = plain()
    with xk.attach(model, {"relu": "keras_test_guided"}):
        _, pull = xg.vjp(model, keras.ops.convert_to_tensor(X))
        heat = keras.ops.convert_to_numpy(pull(keras.ops.convert_to_tensor(Y))[0])
    xg.unregister("keras_test_guided")
    a, p, b, q, c, _ = (w.astype(np.float64) for w in model.get_weights())
    first = X @ a + p
    second = np.maximum(first, 0) @ b + q
    back = Y @ c.T
    back = np.where((second > 0) & (back > 0), back, 0) @ b.T
    back = np.where((first > 0) & (back > 0), back, 0) @ a.T
    np.testing.assert_allclose(heat, back, rtol=1e-5, atol=1e-6)


@pytest.mark.backends("torch")
def test_dynamo_reads_an_attached_model_whole(backend: Any) -> None:
    import keras

    torch = pytest.importorskip("torch")
    import multigrad.keras as xk

    model = plain()
    for rules in ({"relu": RULE}, {"a": NONE, "relu": RULE}):
        with xk.attach(model, rules):
            whole = torch.compile(lambda x: model(x), backend="aot_eager", fullgraph=True)
            found, expected = (keras.ops.convert_to_tensor(X).requires_grad_() for _ in "12")
            whole(found).sum().backward()
            model(expected).sum().backward()
            torch.testing.assert_close(found.grad, expected.grad)
