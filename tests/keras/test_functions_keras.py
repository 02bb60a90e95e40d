"""Functions in Keras models: called on symbolic tensors, on Keras's variables, trained, saved and
loaded.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from .test_custom_gradient_keras import mixed

keras: Any = pytest.importorskip("keras")
xk: Any = pytest.importorskip("multigrad.keras")

pytestmark = pytest.mark.needs("keras")
xp = xg.xp
X = np.linspace(-2.0, 3.0, 12, dtype=np.float32).reshape(4, 3)


@xg.custom_gradient
def doubled_gradient(x: Any) -> Any:
    """The identity, whose gradient is twice the true one."""

    def grad(upstream: Any) -> Any:
        return upstream * 2.0

    return x * 1.0, grad


def clipped(x: Any, limit: Any) -> Any:
    return xp.clip(x, 0.0, limit)


def clipped_backward(grad_out: Any, x: Any, limit: Any) -> Any:
    return xp.where((x > 0) & (x < limit), grad_out, 0.0), None


CLIPPED = xg.function(clipped, clipped_backward)
LIMITED = CLIPPED.bind({"limit": 1.5})


def build(function: Any, *args: Any) -> Any:
    keras.utils.set_random_seed(1)
    x = keras.Input((3,))
    y = keras.layers.Dense(1, use_bias=False)(function(keras.layers.Dense(3)(x), *args))
    return keras.Model(x, y)


def first_step(model: Any) -> list[Any]:
    """The change of the weights in one step of SGD with a learning rate of 1."""
    before = model.get_weights()
    model.compile(keras.optimizers.SGD(1.0), "mse")
    model.train_on_batch(X, np.ones((4, 1), np.float32))
    return [b - a for a, b in zip(before, model.get_weights(), strict=True)]


def test_a_function_in_a_functional_keras_model_trains_with_its_own_gradient() -> None:
    def identity(x: Any) -> Any:
        return x

    ours, plain = first_step(build(doubled_gradient)), first_step(build(identity))
    assert np.allclose(ours[0], 2 * plain[0], rtol=1e-5, atol=1e-6)
    assert np.allclose(ours[2], plain[2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (xg.estimators.ste_sign, ()),
        (xg.get("triangular").under("Heaviside").with_defaults((2.0,)), ()),
        (xg.get("noise").under("Linear").with_defaults((0.5,)).keyed(7), ()),
        (CLIPPED, (1.5,)),
        (LIMITED, ()),
    ],
    ids=["estimator", "rule under an activation", "keyed", "of a number", "bound"],
)
@pytest.mark.parametrize("as_layer", [True, False], ids=["layer", "operation"])
def test_a_function_and_its_values_are_the_same_in_a_loaded_model_and_a_clone(
    tmp_path: Path, function: Any, args: tuple[float, ...], as_layer: bool
) -> None:
    model = build(xk.CustomGradient(function) if as_layer else function, *args)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")  # safe_mode is on
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    steps = [first_step(each) for each in (model, loaded, clone)]
    is_keyed = getattr(function, "is_keyed", False)
    if function in (CLIPPED, LIMITED):
        steps.append(first_step(build(lambda x: keras.ops.clip(x, 0.0, 1.5))))
    for other in steps[1:]:
        for a, b in zip(other, steps[0], strict=True):
            if is_keyed:  # models that are built count their calls too
                assert np.isfinite(a).all()
            else:
                np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    if is_keyed and as_layer:
        assert all(each.layers[2].function.is_keyed for each in (loaded, clone))


def test_a_rules_param_among_the_options_is_told_with_what_to_write() -> None:
    for make in (xk.Activation, xk.activation):
        with pytest.raises(xg.RuleError, match=r'takes no .width.*write params={"width": 2.0}'):
            make("Heaviside", "triangular", width=2.0)
        with pytest.raises(xg.RuleError, match=r'did you mean params={"width": 2.0}'):
            make("Heaviside", "triangular", widht=2.0)
        with pytest.raises(ValueError, match="triangularity"):  # Keras's own word
            make("Heaviside", "triangular", dtype="triangularity")
    with pytest.raises(xg.RuleError, match=r'write params={"max_norm": 1.0}'):
        xk.apply_to_gradients(keras.optimizers.SGD(), "clip_norm", max_norm=1.0)


def test_a_keras_variable_is_an_argument_and_gets_its_gradient() -> None:
    @xg.custom_gradient
    def scaled(x: Any, w: Any) -> Any:
        def grad(upstream: Any) -> Any:
            return upstream * w, xp.sum(upstream * x) * 10.0

        return x * w, grad

    class Scale(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.w = self.add_weight(shape=(), initializer="ones")

        def call(self, x: Any) -> Any:
            return scaled(x, self.w)

    model = keras.Sequential([Scale()])
    model.build((None, 3))
    change = first_step(keras.Sequential([model, keras.layers.Lambda(lambda y: y[:, :1])]))
    residual = X[:, :1] - 1.0
    expected = -10.0 * np.mean(2 * residual * X[:, :1])
    assert np.allclose(change[0], expected, rtol=1e-5)


def test_a_function_closes_over_a_keras_variable_without_a_gradient_for_it() -> None:
    w = keras.Variable(np.float32(3.0))

    @xg.custom_gradient
    def scaled(x: Any) -> Any:
        value = keras.ops.convert_to_tensor(w)
        return x * value, lambda upstream: upstream * value

    class Scale(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return scaled(x)

    model = keras.Sequential([keras.layers.Dense(3), Scale(), keras.layers.Dense(1)])
    model.build((None, 3))
    before = model.predict(X, verbose=0)
    w.assign(np.float32(6.0))
    model.predict_function = None
    after = model(X)
    assert np.allclose(2 * (before - 0), keras.ops.convert_to_numpy(after), rtol=1e-5, atol=1e-6)
    # JAX does not ask for a gradient of what it holds constant.
    asked = keras.backend.backend() != "jax"
    warned = pytest.warns(xg.NativeRuleWarning, match="reads besides its arguments")
    with warned if asked else nullcontext():
        changes = first_step(model)
    assert all(np.all(np.isfinite(change)) for change in changes)


def test_words_and_numbers_among_symbolic_tensors_stay_what_they_are() -> None:
    def scaled(given: dict[str, Any]) -> Any:
        factor = given["factor"] if given["mode"] == "times" else 1.0 / given["factor"]
        return {"y": [given["x"] * factor]}

    inputs = keras.Input((None, 3))
    outputs = xg.function(scaled)({"x": inputs, "factor": 4.0, "mode": "by"})
    assert outputs["y"][0].shape == (None, None, 3)
    found = keras.Model(inputs, outputs)(X[None])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(found["y"][0]), X[None] / 4.0)


def test_a_layer_tells_the_shapes_of_tensors_among_words_and_numbers() -> None:
    layer = xk.CustomGradient(xg.function(lambda x, mode: {"mode": mode, "y": [x * 2.0, 3]}))
    told = layer.compute_output_spec(keras.Input((None, 3)), "by")
    assert (told["mode"], told["y"][1]) == ("by", 3)
    assert told["y"][0].shape == (None, None, 3)


def test_a_random_function_needs_a_key_or_a_layer_where_there_is_no_generator() -> None:
    jammed = xg.function(lambda x: x * 1.0, lambda grad_out, x: grad_out * xp.rand_like(x))
    with_key = first_step(build(jammed.keyed(7)))
    assert np.all(np.isfinite(with_key[0]))
    if keras.config.backend() == "jax":
        with pytest.raises(xg.RuleError, match=r"CustomGradient\(<lambda>\).*keyed\(0\)"):
            build(jammed)
    else:
        assert np.all(np.isfinite(first_step(build(jammed))[0]))


# --- what is saved --------------------------------------------------------------------------------


def build_pair(call: Any) -> Any:
    """Give a model around a function of two tensors, a number and a word."""
    keras.utils.set_random_seed(3)
    x = keras.Input((3,))
    found = call(keras.layers.Dense(3)(x), keras.layers.Dense(3)(x), 2.0, mode="minus")
    return keras.Model(x, keras.layers.Dense(1)(found["product"] + found["others"][0]))


def test_a_loaded_layer_has_its_backend_and_a_clone_its_function(tmp_path: Path) -> None:
    model = build_pair(xk.CustomGradient(xg.custom_gradient(mixed), "numpy", name="pair"))
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    layer = loaded.get_layer("pair")
    assert layer.backend == "numpy"
    with pytest.raises(xg.TraceError, match="was not saved for"):
        layer(X, X, 2.0, mode="sideways")
    clone = keras.models.clone_model(model)
    clone.load_weights(tmp_path / "model.weights.h5")
    expected = first_step(model)
    for other in (loaded, clone):
        for a, b in zip(first_step(other), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_what_is_not_captured_cannot_be_saved(tmp_path: Path) -> None:
    @xg.custom_gradient(native=True)
    def as_it_is(x: Any) -> Any:
        return x * 1.0, lambda upstream: upstream

    def branches(x: Any) -> Any:
        return x if float(x.sum()) > 0 else -x

    with pytest.raises(xg.TraceError, match="cannot be saved"):
        build(as_it_is).save(tmp_path / "model.keras")
    layer = xk.CustomGradient(as_it_is, name="gate")
    layer(X)
    for each, words in (
        (layer, "layer 'gate' cannot be saved: function 'as_it_is' runs"),
        (xk.Activation(branches, name="ours"), "layer 'ours' cannot be saved: .*'branches'"),
    ):
        with pytest.raises(xg.TraceError, match=words):
            each.get_config()


@pytest.mark.parametrize(
    "data", [None, 3, {}, {"format": "multigrad", "version": 99}, "triangular"]
)
def test_a_malformed_function_in_a_config_is_refused(data: Any) -> None:
    layer = xk.CustomGradient(xg.function(clipped, clipped_backward), name="gate")
    layer(X, 1.5)
    with pytest.raises(xg.FormatError, match="layer 'gate'"):
        xk.CustomGradient.from_config({**layer.get_config(), "function": data})
    rule = xg.get("triangular").to_dict()
    with pytest.raises(xg.FormatError, match="layer 'gate': it needs a function"):
        xk.CustomGradient.from_config({**layer.get_config(), "function": rule})
    with pytest.raises(xg.FormatError, match="operation 'gate'"):
        xk.FunctionOperation.from_config({"name": "gate", "function": data})


def test_what_only_another_framework_can_run_is_not_exported(tmp_path: Path) -> None:
    as_it_is = xg.function(clipped, clipped_backward, native=True)
    x = keras.Input((3,))
    model = keras.Model(x, xk.CustomGradient(as_it_is, "numpy", name="gate")(x, 1.5))
    style = "torch" if keras.config.backend() == "torch" else "tf_saved_model"
    if style == "tf_saved_model":
        pytest.importorskip("tensorflow")
    path = tmp_path / ("model.pt2" if style == "torch" else "model")
    # Keras wraps what fails in torch's exporter.
    kind = RuntimeError if style == "torch" else xg.TraceError
    with pytest.raises(kind, match="layer 'gate' runs in 'numpy' and cannot be exported"):
        model.export(str(path), format=style, verbose=False)


@pytest.mark.needs("torch")
def test_a_length_that_is_not_known_is_told_by_trying() -> None:
    from ..written.autograd_classes import BranchesOnValues

    layer = xk.CustomGradient(xg.from_autograd_function(BranchesOnValues), "torch")
    outputs = layer(keras.Input((None, 3), dtype="float32"))
    assert (outputs.shape, outputs.dtype) == ((None, None, 3), "float32")

    class Around(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return layer(x) * 2.0

    inputs = keras.Input((None, 3))
    model = keras.Model(inputs, Around()(inputs))
    assert model.output_shape == (None, None, 3)
    np.testing.assert_allclose(model.predict(X[None], verbose=0), 2 * np.tanh(X[None]), rtol=1e-6)


def test_a_shape_is_told_for_shapes() -> None:
    row_sums = xk.CustomGradient(xg.function(lambda x: xp.sum(x, axis=-1)))
    assert row_sums.compute_output_shape((None, 4, 3)) == (None, 4)
    pair = xk.CustomGradient(xg.function(lambda x, y: (x + y, xp.sum(y))))
    assert pair.compute_output_shape((None, 3), (None, 3)) == ((None, 3), ())


# --- bad input ------------------------------------------------------------------------------------


def test_what_is_no_function_is_refused_with_what_to_write() -> None:
    class Clipped:
        pass

    with pytest.raises(
        xg.RuleError, match=r"xg\.custom_gradient\(clipped\).*xg\.function\(clipped"
    ):
        xk.CustomGradient(clipped, name="gate")
    with pytest.raises(TypeError, match=r"layer 'gate'.*xg\.from_autograd_function\(Clipped\)"):
        xk.CustomGradient(Clipped, name="gate")
    with pytest.raises(TypeError, match=r"got str 'triangular'"):
        xk.CustomGradient("triangular")
    function = xg.function(clipped, clipped_backward)
    layer = xk.CustomGradient(function)
    with pytest.raises(TypeError, match="takes a Function"):
        layer.function = clipped
    assert layer(X, 1.5).shape == X.shape


def test_an_unknown_backend_is_refused_and_the_layer_stays_usable() -> None:
    layer = xk.CustomGradient(xg.function(clipped, clipped_backward))
    with pytest.raises(xg.BackendNotFound, match="'tensorflw'; did you mean 'tensorflow'"):
        layer.backend = "tensorflw"
    assert layer.backend is None
    assert layer(X, 1.5).shape == X.shape


def test_a_wrong_call_names_the_layer_and_the_function() -> None:
    layer = xk.CustomGradient(xg.custom_gradient(mixed), name="gate")
    with pytest.raises(TypeError, match=r"layer 'gate', function 'mixed': missing.*'scale'"):
        layer(X, X)
    with pytest.raises(xg.RuleError, match=r"'w' .*mixed\.bind\(\{.*\"scale\": \.\.\.\}"):
        keras.Sequential([keras.Input((3,)), layer])
    with pytest.raises(TypeError, match="'mixed' takes no 'scael'; did you mean 'scale'"):
        layer(X, X, 1.0, scael=2.0)


# Functions in the place of an activation's name: what is saved of one is its graph.


X_FORWARDS = np.linspace(-2.0, 2.0, 12).astype(np.float32).reshape(4, 3)


def doubled_tanh(x: Any) -> Any:
    return 2.0 * xg.xp.tanh(x)


@pytest.mark.parametrize("rule", [None, "triangular"])
@pytest.mark.parametrize("kind", ["keras", "plain", "Function", "defaults", "layer"])
def test_a_model_with_a_function_is_saved_and_predicts_the_same(
    kind: str, rule: str | None, tmp_path: Path
) -> None:
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
    expected = keras.ops.convert_to_numpy(forward(X_FORWARDS))
    for each in (model, loaded):
        np.testing.assert_allclose(each.predict(X_FORWARDS, verbose=0), expected, rtol=1e-5)
    assert repr(loaded.get_layer("ours")._activation) == repr(layer._activation)
    loaded.get_layer("ours").rule = "rectangular"  # the forward stays
    np.testing.assert_allclose(loaded.predict(X_FORWARDS, verbose=0), expected, rtol=1e-5)


def test_a_config_that_holds_no_function_is_refused() -> None:
    config = xk.Activation(doubled_tanh).get_config()
    for forward in ({"format": "multigrad"}, 3, xg.get("triangular").to_dict()):
        with pytest.raises(xg.FormatError):
            xk.Activation.from_config({**config, "forward": forward})


def test_a_param_of_one_part_is_bound_to_it_and_saved() -> None:
    given = {"triangular.width": 4.0, "scale[1].s": 3.0}
    chain = xg.compose("triangular", "scale", "scale")
    layer = xk.Activation("ReLU", chain, params=given)
    expected = "<Rule triangular(width=4.0) → scale → scale(s=3.0)>"
    copied = xk.Activation.from_config(json.loads(json.dumps(layer.get_config())))
    for each in (layer, copied):
        assert repr(each.rule) == expected
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(each(X_FORWARDS)), np.maximum(X_FORWARDS, 0)
        )
        each.params["s"] = 5.0  # of the part that is left
        assert (
            each.rule(None, X_FORWARDS, X_FORWARDS, s=5.0).max()
            == (X_FORWARDS * 15 * (1 - abs(X_FORWARDS) / 4)).max()
        )
