"""Layers of Keras with quantized weights and inputs: numbers by hand, files, any layer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..harness.estimator_oracles import lsq
from ..harness.hidden import python
from ..harness.models.models_keras import pull
from ..support.threads import on_threads

keras: Any = pytest.importorskip("keras")
xk: Any = pytest.importorskip("multigrad.keras")

pytestmark = pytest.mark.needs("keras")
HOST = os.environ.get("KERAS_BACKEND", "")
Array = Any


def array(x: Any) -> Array:
    return np.array(keras.ops.convert_to_numpy(x), np.float64)


def test_one_step_of_training_is_that_of_the_papers_formulas(mode: dict[str, Any]) -> None:
    layer = xk.QuantDense(3, bits=3, activations={"name": "lsq", "signed": False})
    model: Any = keras.Sequential([keras.Input((4,)), layer])
    model.compile(keras.optimizers.SGD(1.0), "mse", **mode)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 4)).astype("f"), rng.normal(size=(8, 3)).astype("f")
    kernel, bias = array(layer.layer.kernel), array(layer.layer.bias)
    step, inner = array(layer.quantizers[0].step), array(layer.inputs_quantizer.step)
    np.testing.assert_allclose(step, 2 * np.abs(kernel).mean() / np.sqrt(3), rtol=1e-6)
    np.testing.assert_allclose(inner, 2 * np.sqrt(2 / np.pi) / np.sqrt(7), rtol=1e-6)

    rounded, _ = lsq(x, x, inner, bits=3, signed=False)
    levels, _ = lsq(kernel, kernel, step, bits=3)
    error = 2 * (rounded @ levels + bias - y) / y.size
    _, (of_kernel, of_step) = lsq(rounded.T @ error, kernel, step, bits=3)
    _, (_, of_inner) = lsq(error @ levels.T, x, inner, bits=3, signed=False)
    np.testing.assert_allclose(array(model(x)), rounded @ levels, atol=1e-6)
    model.fit(x, y, batch_size=8, verbose=0)
    np.testing.assert_allclose(array(layer.layer.kernel), kernel - of_kernel, atol=2e-6)
    np.testing.assert_allclose(array(layer.layer.bias), bias - error.sum(0), atol=2e-6)
    np.testing.assert_allclose(array(layer.quantizers[0].step), step - of_step, atol=2e-6)
    np.testing.assert_allclose(array(layer.inputs_quantizer.step), inner - of_inner, atol=2e-6)


@xg.custom_gradient
def own_sign(x: Any) -> Any:
    return xg.xp.sign(x), lambda upstream: upstream


def build() -> Any:
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            xk.QuantConv2D(4, 3, activation="relu", activations="lsq", axis=-1),
            keras.layers.Reshape((16, 4)),
            xk.QuantConv1D(4, 2, weights="fake_quantize", activations="pact"),
            xg.quantize(keras.layers.Bidirectional(keras.layers.GRU(4)), "dorefa"),
            xk.Quantizer("lsq_plus", bits=8, axis=-1),
            xg.quantize(keras.layers.Dense(3), own_sign),
        ]
    )


def test_a_trained_model_is_saved_and_loaded(tmp_path: Path) -> None:
    model = build()
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(8, 6, 6, 2)).astype("f")
    before = [array(each) for each in model.trainable_variables]
    model.fit(x, np.ones((8, 3), "f"), epochs=2, verbose=0)
    pairs = zip(model.trainable_variables, before, strict=True)
    kept = {now.name for now, then in pairs if np.abs(array(now) - then).max() == 0}
    assert kept <= {"alpha", "high", "low", "offset"}  # nothing may lie beyond these
    y = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    again = build()
    again.load_weights(tmp_path / "model.weights.h5")
    for ours, theirs in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    loaded: Any = keras.models.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), y)


def test_a_model_is_exported(tmp_path: Path) -> None:
    layer = xk.QuantDense(3, activations="lsq")
    model = keras.Sequential([keras.Input((4,)), layer])
    x = np.random.default_rng(0).normal(size=(1, 4)).astype("f")
    y = array(model(x))
    if HOST == "torch":
        runtime = pytest.importorskip("onnxruntime", reason="runs the file")
        pytest.importorskip("onnxscript", reason="Keras on torch writes ONNX with it")
        model.export(tmp_path / "model.onnx", format="onnx", verbose=False)
        session = runtime.InferenceSession(tmp_path / "model.onnx")
        found = session.run(None, {session.get_inputs()[0].name: x})[0]
    else:
        tensorflow = pytest.importorskip("tensorflow", reason="SavedModel is its format")
        model.export(tmp_path / "model", verbose=False)
        loaded = tensorflow.saved_model.load(str(tmp_path / "model"))
        found = loaded.serve(x)
    np.testing.assert_allclose(np.array(found), y, atol=1e-6)


@pytest.mark.parametrize("kind", ["LSTM", "Bidirectional", "Embedding", "Depthwise", "Attention"])
def test_any_layer_computes_what_it_computes_with_quantized_weights(kind: str) -> None:
    def make() -> Any:
        layers = keras.layers
        return {
            "LSTM": lambda: layers.LSTM(4),
            "Bidirectional": lambda: layers.Bidirectional(layers.GRU(4)),
            "Embedding": lambda: layers.Embedding(9, 3),
            "Depthwise": lambda: layers.DepthwiseConv1D(2),
            "Attention": lambda: layers.GroupQueryAttention(4, 2, 1),
        }[kind]()

    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("f")
    x = np.array([[1, 8, 2]]) if kind == "Embedding" else x
    more = {"value": x} if kind == "Attention" else {}
    plain, within = make(), make()
    plain(x, **more)
    within(x, **more)
    within.set_weights(plain.get_weights())
    layer = xg.quantize(within, "ste_sign")
    weights = [
        np.where(w >= 0, 1.0, -1.0) if w.ndim >= 2 and "bias" not in variable.name else w
        for variable, w in zip(plain.weights, plain.get_weights(), strict=True)
    ]
    plain.set_weights(weights)
    np.testing.assert_allclose(array(layer(x, **more)), array(plain(x, **more)), atol=1e-6)
    assert any(np.abs(w).max() != 1 for w in layer.layer.get_weights())  # those that are trained


def test_threads_that_call_one_layer_do_not_meet() -> None:
    layer = xk.QuantDense(64, bits=2)
    x = np.random.default_rng(0).normal(size=(4, 64)).astype("f")
    expected, wrong = array(layer(x)), []

    def call(_: int) -> None:
        for _ in range(20):
            if not np.allclose(array(layer(x)), expected, atol=1e-5):
                wrong.append(1)

    on_threads(call, *range(3))
    assert not wrong


COMPILED_FIRST = """
import functools, torch
torch.compile = functools.partial(torch.compile, backend="eager")  # Dynamo, not inductor, is met
import keras, numpy as np
import multigrad.keras
layers = [multigrad.keras.QuantDense(5, bits=4), keras.layers.Dense(3)]
model = keras.Sequential([keras.Input((6,)), *layers])
model.compile("sgd", "mse", jit_compile=True)
model.fit(np.ones((4, 6), "f"), np.ones((4, 3), "f"), verbose=0)
print("trained")
"""


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="Dynamo is PyTorch's compiler")
def test_a_process_whose_first_call_is_compiled_trains() -> None:
    assert python("-c", COMPILED_FIRST).strip().endswith("trained")


def test_in_16_bits_weights_are_quantized_in_32() -> None:
    layer = xk.QuantDense(3, dtype="mixed_bfloat16", use_bias=False)
    y = layer(np.eye(4, dtype="f"))
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    kernel, step = array(layer.layer.kernel), array(layer.quantizers[0].step)
    levels, _ = lsq(kernel, kernel, step, bits=4)
    np.testing.assert_array_equal(array(y), array(keras.ops.cast(levels, "bfloat16")))


def test_what_is_learned_of_inputs_starts_from_a_sample() -> None:
    x = np.random.default_rng(0).gamma(2.0, size=(32, 4)).astype("f")
    layer = xg.quantize(keras.layers.Dense(3), activations="pact", sample=x)
    layer(x)
    np.testing.assert_allclose(array(layer.inputs_quantizer.alpha), x.max(), rtol=1e-6)


def test_relevance_flows_by_the_quantized_weights() -> None:
    layer = xk.QuantDense(3, bits=2)
    model = keras.Sequential([keras.Input((4,)), layer])
    x = np.random.default_rng(0).normal(size=(2, 4)).astype("f")
    plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    step, kernel = array(layer.quantizers[0].step), array(layer.layer.kernel)
    plain.layers[0].set_weights([lsq(kernel, kernel, step, bits=2)[0], np.zeros(3)])
    composite = xg.composites.epsilon_plus()
    found = []
    for each in (model, plain):
        with xg.attach(each, composite):
            found.append(pull(each, x, np.ones_like)[1])
    np.testing.assert_allclose(*found, atol=1e-5)


def test_a_quantized_layer_is_recomputed_and_one_that_would_lose_its_levels_is_refused() -> None:
    with keras.RematScope(mode="full"):
        layer, dense = xk.QuantDense(3, bits=2), keras.layers.Dense(3)
    model: Any = keras.Sequential([keras.Input((4,)), layer])
    with pytest.raises(xg.RuleError, match=r"made in a RematScope.*make it outside"):
        xg.quantize(dense)
    plain: Any = keras.Sequential([keras.Input((4,)), xk.QuantDense(3, bits=2)])
    plain.set_weights(model.get_weights())
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("f")
    for each in (model, plain):
        each.compile("sgd", "mse")
        each.fit(x, x[:, :3], batch_size=8, verbose=0)
    for one, other in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_allclose(array(one), array(other), atol=1e-6)


def test_what_cannot_be_quantized_is_said() -> None:
    with pytest.raises(xg.RuleError, match="no quantizer 'lqs' of weights; did you mean 'lsq'"):
        xk.QuantDense(3, weights="lqs")
    with pytest.raises(xg.RuleError, match="takes no 'bit'; did you mean 'bits'"):
        xk.QuantDense(3, activations={"name": "lsq", "bit": 2})
    with pytest.raises(TypeError, match=r"^QuantDense takes no 'bit'; did you mean 'bits'"):
        xk.QuantDense(3, bit=2)
    with pytest.raises(xg.RuleError, match="'step' of 'lsq' is learned"):
        xk.Quantizer({"name": "lsq", "step": 2})
    with pytest.raises(xg.RuleError, match="has no weight of two axes"):
        xg.quantize(keras.layers.ReLU()).build((None, 3))
    with pytest.raises(xg.RuleError, match="has 2 axes, and none is axis=2"):
        xk.QuantDense(3, axis=2).build((None, 3))
    with pytest.raises(xg.RuleError, match="quantize the layers within it"):
        xg.quantize(keras.Sequential([keras.layers.Dense(3)]), activations="lsq")
    within = keras.layers.Dense(3)
    xg.quantize(within).build((None, 3))
    with pytest.raises(xg.RuleError, match="is quantized already"):
        xg.quantize(within).build((None, 3))


def test_an_attribute_of_the_layer_within_is_said_to_be_there() -> None:
    layer, built = xk.QuantDense(3), xk.QuantDense(3)
    built.build((None, 4))
    for each in (layer, built):
        with pytest.raises(AttributeError, match=r"the Dense within has it: write \.layer\.kernel"):
            _ = each.kernel
    with pytest.raises(AttributeError, match=r"no attribute 'kernels'$"):
        _ = built.kernels


def test_a_compiled_network_within_leaves_loss_and_metrics_to_the_model() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((16, 4), np.float32), rng.integers(0, 3, 16)
    loss, found = "sparse_categorical_crossentropy", []
    for compiled in ("not", "compiled", "fitted"):
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(4, "relu"), keras.layers.Dense(3, "softmax")]
        network = keras.Sequential([keras.Input((4,)), *layers])
        if compiled != "not":
            network.compile(keras.optimizers.SGD(0.0), loss, metrics=["accuracy"])
        if compiled == "fitted":
            network.fit(x, y, verbose=0)
        model: Any = keras.Sequential([keras.Input((4,)), xg.quantize(network, bits=4)])
        model.compile("sgd", loss, metrics=["accuracy"])
        history = model.fit(x, y, shuffle=False, verbose=0).history
        found.append([*history["loss"], *history["accuracy"], *model.evaluate(x, y, verbose=0)])
        model.set_state_tree(model.get_state_tree())  # by paths, so that no two are the same
    assert found[0][0] > 0.5
    np.testing.assert_allclose(found[1:], [found[0]] * 2, rtol=1e-5)


def test_a_subclass_that_holds_its_step_itself_says_what_is_saved(tmp_path: Path) -> None:
    """Keras's Dense saves its kernel and its bias by name, and knows no other weight."""

    @keras.saving.register_keras_serializable(package="multigrad_tests")
    class Stepped(keras.layers.Dense):
        def build(self, input_shape: Any) -> None:
            super().build(input_shape)
            self.step = self.add_weight(shape=(), initializer="ones", name="step")

        def call(self, inputs: Any) -> Any:
            kernel = xg.estimators.lsq(self.kernel, self.step, bits=4)
            return keras.ops.add(keras.ops.matmul(inputs, kernel), self.bias)

    @keras.saving.register_keras_serializable(package="multigrad_tests")
    class Saved(Stepped):
        def save_own_variables(self, store: Any) -> None:
            keras.layers.Layer.save_own_variables(self, store)

        def load_own_variables(self, store: Any) -> None:
            keras.layers.Layer.load_own_variables(self, store)

    x = np.ones((2, 4), "f")
    for kind in (Stepped, Saved):
        model = keras.Sequential([keras.Input((4,)), kind(3)])
        model.layers[0].step.assign(0.25)
        model.save(tmp_path / "model.keras")
        if kind is Stepped:
            with pytest.raises(ValueError, match="expected 3 variables"):
                keras.models.load_model(tmp_path / "model.keras")
        else:
            again: Any = keras.models.load_model(tmp_path / "model.keras")
            np.testing.assert_array_equal(array(again(x)), array(model(x)))


# Functions of the library in Keras models: steps that a layer learns, in a graph and in `call`.


def test_a_layer_learns_its_steps() -> None:
    class Quantized(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.step = self.add_weight(shape=shape[-1:], initializer="ones")

        def call(self, x: Any) -> Any:
            return xg.estimators.lsq(x, self.step, bits=3)

    layer = Quantized()
    model = keras.Sequential([keras.Input((4,)), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).standard_normal((32, 4))
    model.fit(x, x[:, :1], epochs=1, verbose=0)
    assert np.abs(np.array(layer.step) - 1).min() > 1e-7


def test_a_model_of_functions_is_checked_while_it_is_built() -> None:
    inputs = keras.Input((3, 4))
    y = xg.estimators.lsq(inputs, 0.25, bits=3)
    assert y.shape == (None, 3, 4)
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(1, 3, 4)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(keras.Model(inputs, y)(x)),
        xg.estimators.lsq(x, 0.25, bits=3),
        rtol=1e-6,
    )
    with pytest.raises(xg.RuleError, match=r"'step' of shape \(3,\) for 'x' of shape \(None, 3, 4"):
        xg.estimators.lsq(inputs, np.ones(3, np.float32))
