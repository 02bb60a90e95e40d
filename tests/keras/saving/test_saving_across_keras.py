"""What is saved on one Keras backend loads on each, in a process that knows none of the rules."""

from __future__ import annotations

import itertools
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ...harness.hidden import run_python

pytestmark = [pytest.mark.anywhere, pytest.mark.needs("keras")]
BACKENDS = ("tensorflow", "jax", "torch")
MODELS = ("spike", "functions")

COMMON = """
import sys
from pathlib import Path
import numpy as np
import multigrad as xg
assert "keras" not in sys.modules
import multigrad.keras  # all that loading needs
import keras
assert keras.saving.get_registered_object("multigrad>Activation") is multigrad.keras.Activation
assert xg.keras is multigrad.keras

folder, here = Path(sys.argv[1]), keras.config.backend()
data = np.load(folder / "data.npz")
x, y, weights = data["x"], data["y"], [data[f"w{i}"] for i in range(4)]


def describe(model, path):
    model.compile(keras.optimizers.SGD(0.125), "mse")
    before = model.predict(x, verbose=0)
    model.fit(x, y, batch_size=len(x), shuffle=False, verbose=0)
    trained = [keras.ops.convert_to_numpy(v.value) for v in model.trainable_variables]
    np.savez(path, before, *trained)
"""

WRITE = (
    COMMON
    + """
layers, xk = keras.layers, multigrad.keras
keras.utils.set_random_seed(1)


@xg.register("tent")
def tent(ctx, grad_out, tin, width: float = 1.0, power: int = 1):
    return grad_out * xg.xp.maximum(1 - abs(tin) / width, 0.0) ** power


def pair(x, w, scale, mode="plus"):
    def grad(upstream):
        total = upstream["product"] + upstream["others"][0]
        return total * scale, total * 10.0, None

    others = [x + w if mode == "plus" else x - w]
    return {"product": x * w * scale, "others": others}, grad


@xg.custom_gradient
def own_sign(x):
    return xg.xp.sign(x), lambda upstream: upstream


def make_spike():
    spike = xk.Activation("Heaviside", rule="tent", params={"width": 2.0}, name="spike")
    model = keras.Sequential([keras.Input((8,)), layers.Dense(6), spike, layers.Dense(3)])
    spike.params["width"] = 0.5
    for variable, weight in zip(model.trainable_variables, weights):
        variable.assign(weight)
    return model


def make_functions():
    inputs = found = keras.Input((8,))
    function = xg.custom_gradient(pair)
    for call in (xk.CustomGradient(function), function):
        found = call(layers.Dense(3)(found), layers.Dense(3)(found), 0.5, mode="minus")
        found = layers.Dense(4)(found["product"] + found["others"][0])
    rule = xg.compose("triangular", "clip_norm")
    found = xk.Activation("Tanh", rule, name="composed")(found)
    found = xk.QuantDense(4, bits=3, activations="lsq")(found)
    return keras.Model(inputs, xg.quantize(layers.Dense(3), own_sign)(found))


for name, make in (("spike", make_spike), ("functions", make_functions)):
    model = make()
    model.compile(keras.optimizers.SGD(0.125), "mse")
    model.save(folder / f"{here}-{name}.keras")
    model.save_weights(folder / f"{here}-{name}.weights.h5")
    describe(model, folder / f"{here}-{name}.npz")
"""
)

READ = (
    COMMON
    + """
for file in sorted(folder.glob("*.keras")):
    # Compiled here: Keras (3.15) on torch saves an SGD that other backends load and cannot run.
    model = keras.saving.load_model(file, safe_mode=True, compile=False)
    assert "tent" not in xg.rules()
    describe(model, folder / f"{file.stem}-{here}.npz")
    if file.stem.endswith("spike"):
        params = model.get_layer("spike").params
        assert params.numbers()["width"] == 0.5, params
        params["width"] = 4.0
        model.load_weights(folder / f"{file.stem}.weights.h5")
        assert params.numbers()["width"] == 0.5, params
    else:
        rule = model.get_layer("composed").get_config()["rule"]
        assert rule == {"compose": ["triangular", "clip_norm"]}, rule
"""
)


def run(script: str, backend: str, folder: Path) -> None:
    done = run_python("-c", script, folder, KERAS_BACKEND=backend)
    assert done.returncode == 0, f"{backend}: {done.stderr}"


def read(file: Path) -> list[Any]:
    """Give the outputs of a model, and its weights after a step."""
    return list(np.load(file).values())


def check_step(found: list[Any], expected: list[Any]) -> None:
    """Compare the weights after a step with those of the formulas."""
    for ours, theirs in zip(found[1:], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


def test_each_keras_backend_loads_what_each_has_saved_with_equal_gradients(
    network: Any, tmp_path: Path
) -> None:
    installed = [name for name in BACKENDS if find_spec(name) is not None]
    weights = {f"w{i}": w for i, w in enumerate(network.weights)}
    np.savez(tmp_path / "data.npz", x=network.x, y=network.y, **weights)
    for script in (WRITE, READ):
        for backend in installed:
            run(script, backend, tmp_path)

    expected = network.step(lambda x: network.surrogates["triangular"](x, 0.5))
    for name, writer in itertools.product(MODELS, installed):
        saved = read(tmp_path / f"{writer}-{name}.npz")
        if name == "spike":
            check_step(saved, expected)
        for reader in installed:
            loaded = read(tmp_path / f"{writer}-{name}-{reader}.npz")
            if name == "spike":
                check_step(loaded, expected)
            for ours, theirs in zip(loaded, saved, strict=True):
                said = f"{name}: {writer} to {reader}"
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, err_msg=said)
