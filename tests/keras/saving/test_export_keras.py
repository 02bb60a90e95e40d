"""Export: a file that predicts as the model does where multigrad is not, with the rule's gradient
where it can carry one.

A SavedModel carries gradients. ONNX, LiteRT and torch's .pt2 hold forward alone: what is loaded has
no gradient through the layer, rather than the forward's own.
"""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.hidden import run_python
from ...harness.traced import taped

keras: Any = pytest.importorskip("keras")
xk: Any = pytest.importorskip("multigrad.keras")

pytestmark = pytest.mark.needs("keras")
KERAS_BACKEND = os.environ.get("KERAS_BACKEND", "")
RULE: dict[str, Any] = {"rule": "triangular", "params": {"width": 2.0}}


def on(*names: str) -> Any:
    """Give the mark of tests of a format that Keras writes on these backends."""
    reason = f"Keras writes this format on {' and '.join(names)}"
    return pytest.mark.skipif(KERAS_BACKEND not in names, reason=reason)


# What Keras asks for to write ONNX, and what runs it here.
WRITER = {"tensorflow": "tf2onnx", "jax": "jax2onnx"}.get(KERAS_BACKEND, "onnxscript")
NEEDS_ONNX = pytest.mark.needs("onnx", "onnxruntime", WRITER)
FUNCTIONS = {"function": None, "guest's function": "numpy"}
CASES = ("layer", "activation of Dense", "use", "annealed", "no rule", "guest", *FUNCTIONS)


def step(x: Any) -> Any:
    """0 or 1."""
    return xg.xp.where(x > 0, 1.0, 0.0 * x)


def triangle_of_width_2(grad_out: Any, x: Any) -> Any:
    """What stands in for the step's derivative."""
    return grad_out * xg.xp.maximum(1 - abs(x) / 2, 0)


def build(network: Any, case: str) -> Any:
    """Give a model that has learned a little, with the rule in one place or another."""
    if case == "activation of Dense":
        first = keras.layers.Dense(6, activation=xk.activation("Heaviside", **RULE))
        model = keras.Sequential([keras.Input((8,)), first, keras.layers.Dense(3)])
        model.compile(keras.optimizers.SGD(network.rate), "mse")
        for weight, value in zip(model.trainable_weights, network.weights, strict=True):
            weight.assign(value)
    else:
        model = network.build(make_layer(case))
    if case == "annealed":
        model.layers[1].params["width"].assign(0.75)
    model.train_on_batch(network.x, network.y)
    return model


def make_layer(case: str) -> Any:
    """Give the layer between the two Dense ones."""
    if case in FUNCTIONS:
        return xk.CustomGradient(xg.function(step, triangle_of_width_2), FUNCTIONS[case])
    own = {} if case in ("use", "no rule") else RULE
    return xk.Activation("Heaviside", **own, backend="numpy" if case == "guest" else None)


def exporting(case: str) -> AbstractContextManager[Any]:
    """Put in force what the case says, while it is exported."""
    return xg.use("triangular", params={"width": 2.0}) if case == "use" else nullcontext()


def gradient_of(model: Any, network: Any, case: str) -> Any:
    """Give the gradient of the sum of the outputs in the inputs, by the formulas."""
    a, b, c, _ = (w.astype(np.float64) for w in weights_of(model))
    hidden = network.x.astype(np.float64) @ a + b
    width = {"annealed": 0.75}.get(case, 2.0)
    derivative = network.surrogates[None if case == "no rule" else "triangular"]
    factor = derivative(hidden) if case == "no rule" else derivative(hidden, width)
    return (np.ones((len(hidden), 3)) @ c.T * factor) @ a.T


def weights_of(model: Any) -> list[Any]:
    return [keras.ops.convert_to_numpy(weight) for weight in model.trainable_weights]


def run_without_multigrad(script: str, *arguments: Path) -> Any:
    """Run a script in a process that cannot import multigrad, and give what it prints as JSON."""
    block = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith('multigrad'):\n"
        "            raise ImportError(f'{name} is blocked')\n"
        "sys.meta_path.insert(0, Block())\n"
    )
    done = run_python("-c", block + script, *arguments, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# --- SavedModel -----------------------------------------------------------------------------------

LOAD_SAVED_MODELS = """
import json, numpy, pathlib, tensorflow as tf
folder, found = pathlib.Path(sys.argv[1]), {}
x = tf.constant(numpy.load(folder / "x.npy"))
for path in folder.iterdir():
    if path.is_dir():
        loaded = tf.saved_model.load(str(path))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = loaded.serve(x)
        found[path.name] = [y.numpy().tolist(), tape.gradient(y, x).numpy().tolist()]
print(json.dumps(found))
"""


@on("tensorflow", "jax")
@pytest.mark.needs("tensorflow")
def test_a_saved_model_predicts_and_differentiates_by_the_rule_without_multigrad(
    network: Any, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", network.x)
    expected = {}
    for case in CASES:
        model = build(network, case)
        with exporting(case):
            model.export(tmp_path / case, format="tf_saved_model", verbose=False)
        expected[case] = model.predict(network.x, verbose=0), gradient_of(model, network, case)
    found = run_without_multigrad(LOAD_SAVED_MODELS, tmp_path)
    assert sorted(found) == sorted(CASES)
    for case, (outputs, gradient) in found.items():
        np.testing.assert_allclose(outputs, expected[case][0], rtol=0, atol=1e-6)
        np.testing.assert_allclose(gradient, expected[case][1], rtol=0, atol=1e-6)
        assert np.any(expected[case][1]) == (case != "no rule")


@on("tensorflow", "jax")
@pytest.mark.needs("tensorflow")
def test_a_saved_model_keeps_the_params_as_variables(network: Any, tmp_path: Path) -> None:
    import tensorflow as tf

    model = build(network, "layer")
    model.export(tmp_path / "model", format="tf_saved_model", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    (width,) = (
        v for v in loaded.non_trainable_variables if v.shape == () and v.dtype == tf.float32
    )
    width.assign(0.75)
    gradient = taped(loaded.serve)(tf.constant(network.x))
    np.testing.assert_allclose(gradient, gradient_of(model, network, "annealed"), rtol=0, atol=1e-6)


@on("tensorflow", "jax")
@pytest.mark.needs("tensorflow")
def test_a_random_rule_goes_on_drawing_in_a_saved_model(network: Any, tmp_path: Path) -> None:
    import tensorflow as tf

    model = network.build(xk.Activation("Tanh", rule="noise", params={"sigma": 1.0}))
    model.export(tmp_path / "model", format="tf_saved_model", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    x = tf.constant(network.x)
    found = [taped(loaded.serve)(x) for _ in range(2)]
    np.testing.assert_allclose(
        loaded.serve(x), model.predict(network.x, verbose=0), rtol=0, atol=1e-6
    )
    assert np.abs(found[0] - found[1]).max() > 0.1


# --- forward alone --------------------------------------------------------------------------------


@NEEDS_ONNX
@pytest.mark.parametrize("case", CASES)
def test_onnx_predicts_as_the_model(network: Any, case: str, tmp_path: Path) -> None:
    import onnxruntime

    model, path = build(network, case), tmp_path / "model.onnx"
    expected = model.predict(network.x, verbose=0)
    with exporting(case):
        model.export(path, format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(path)
    (only,) = session.get_inputs()  # no check of ours is an input
    (outputs,) = session.run(None, {only.name: network.x})
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-6)


@on("torch")
@NEEDS_ONNX
@pytest.mark.parametrize("forward", ["ReLU", "GELU", "Heaviside", "Softplus", "LeakyReLU", "ELU"])
def test_onnx_from_torch_knows_the_activations(network: Any, forward: str, tmp_path: Path) -> None:
    import onnxruntime

    model, path = network.build(xk.Activation(forward, rule="noise")), tmp_path / "model.onnx"
    expected = model.predict(network.x, verbose=0)
    model.export(path, format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(path)
    (outputs,) = session.run(None, {session.get_inputs()[0].name: network.x})
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=2e-6)


@on("tensorflow")
def test_litert_predicts_as_the_model(network: Any, tmp_path: Path) -> None:
    import tensorflow as tf

    model, path = build(network, "layer"), tmp_path / "model.tflite"
    model.export(path, format="litert", verbose=False)
    interpreter = tf.lite.Interpreter(str(path))
    (inputs,), (outputs,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.resize_tensor_input(inputs["index"], network.x.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(inputs["index"], network.x)
    interpreter.invoke()
    found = interpreter.get_tensor(outputs["index"])
    np.testing.assert_allclose(found, model.predict(network.x, verbose=0), rtol=0, atol=1e-6)


LOAD_PROGRAMS = """
import json, numpy, pathlib, torch
folder, found = pathlib.Path(sys.argv[1]), {}
x = torch.tensor(numpy.load(folder / "x.npy"), requires_grad=True)
for path in folder.glob("*.pt2"):
    y = torch.export.load(path).module()(x)
    gradient = torch.autograd.grad(y.sum(), x, allow_unused=True)[0] if y.requires_grad else None
    found[path.stem] = [y.tolist(), None if gradient is None else gradient.tolist()]
print(json.dumps(found))
"""


# Keras's tree functions (3.15), of which the layer of a Function has need, stop a strict trace.
STRICT = [case for case in CASES if case not in FUNCTIONS]


@on("torch")
def test_a_torch_program_predicts_and_has_no_gradient_through_the_layer(
    network: Any, tmp_path: Path
) -> None:
    import torch

    np.save(tmp_path / "x.npy", network.x)
    dynamic_shapes = ({0: torch.export.Dim("batch")},)
    expected = {}
    for case, strict in [*((case, False) for case in CASES), *((case, True) for case in STRICT)]:
        model, name = build(network, case), f"{case}, strict {strict}"
        options = {"dynamic_shapes": dynamic_shapes, "strict": strict, "verbose": False}
        expected[name] = model.predict(network.x, verbose=0)
        with exporting(case):
            model.export(tmp_path / f"{name}.pt2", format="torch", **options)
    found = run_without_multigrad(LOAD_PROGRAMS, tmp_path)
    assert sorted(found) == sorted(expected)
    for name, (outputs, gradient) in found.items():
        np.testing.assert_allclose(outputs, expected[name], rtol=0, atol=1e-6, err_msg=name)
        assert gradient is None, name


# --- what export leaves behind --------------------------------------------------------------------

FORMATS = {
    "tensorflow": ["tf_saved_model", "onnx"],
    "torch": ["torch", "onnx"],
    "jax": ["tf_saved_model"],
}
NEEDS = {"tf_saved_model": pytest.mark.needs("tensorflow"), "onnx": NEEDS_ONNX, "torch": ()}
SUFFIXES = {"tf_saved_model": "", "onnx": ".onnx", "torch": ".pt2"}


@pytest.mark.parametrize(
    "form", [pytest.param(name, marks=NEEDS[name]) for name in FORMATS.get(KERAS_BACKEND, ["onnx"])]
)
def test_the_model_follows_another_rule_after_an_export(
    network: Any, form: str, tmp_path: Path
) -> None:
    model = network.build(xk.Activation("Heaviside"))
    model.predict(network.x, verbose=0)
    with xg.use("triangular"):
        model.export(tmp_path / f"model{SUFFIXES[form]}", format=form, verbose=False)
    with xg.use("rectangular"):
        network.check(model, network.surrogates["rectangular"])


@pytest.fixture
def inner() -> Any:
    """A tf.function of the user's own."""
    import tensorflow as tf

    return tf.function(xk.Activation("Heaviside"))


@pytest.fixture
def calling(network: Any, inner: Any) -> Any:
    """A model that calls it."""

    class Model(keras.Model):
        def call(self, inputs: Any) -> Any:
            return inner(inputs)

    model = Model()
    model(network.x)
    return model


@on("tensorflow")
def test_a_function_of_the_users_own_keeps_its_check_through_an_export(
    calling: Any, inner: Any, network: Any, tmp_path: Path
) -> None:
    import tensorflow as tf

    calling.export(tmp_path / "model", format="tf_saved_model", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.serve(network.x), network.x > 0)
    with xg.use("triangular"), pytest.raises(xg.StaleTraceError):
        inner(tf.constant(network.x[:5]))  # by the trace that the export has made


@on("tensorflow")
@NEEDS_ONNX
def test_onnx_of_a_function_with_a_check_is_refused(calling: Any, tmp_path: Path) -> None:
    with pytest.raises(xg.TraceError, match="call the function without"):
        calling.export(tmp_path / "model.onnx", format="onnx", verbose=False)
