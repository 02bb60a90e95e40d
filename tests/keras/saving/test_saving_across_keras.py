"""What is saved on one Keras backend loads on each, in a process that knows nothing of the rule."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.anywhere, pytest.mark.needs("keras")]
BACKENDS = ("tensorflow", "jax", "torch")

COMMON = """
import sys
from pathlib import Path
import numpy as np
import keras
import multigrad as xg
import multigrad.keras

folder = Path(sys.argv[1])
data = np.load(folder / "data.npz")
x, y, weights = data["x"], data["y"], [data[f"w{i}"] for i in range(4)]


def describe(model, path):
    for variable, weight in zip(model.trainable_variables, weights):
        variable.assign(weight)
    before = model.predict(x, verbose=0)
    model.fit(x, y, batch_size=len(x), shuffle=False, verbose=0)
    trained = {
        f"w{i}": keras.ops.convert_to_numpy(v.value)
        for i, v in enumerate(model.trainable_variables)
    }
    np.savez(path, predicted=before, **trained)
"""

WRITE = (
    COMMON
    + """

def make(rule):
    model = keras.Sequential([
        keras.Input((8,)),
        keras.layers.Dense(6),
        multigrad.keras.Activation("Heaviside", rule=rule, params={"width": 2.0}, name="spike"),
        keras.layers.Dense(3),
    ])
    model.compile(keras.optimizers.SGD(0.125), "mse")
    return model


@xg.register("tent")
def tent(ctx, grad_out, tin, width: float = 1.0, power: int = 1):
    return grad_out * xg.xp.maximum(1 - abs(tin) / width, 0.0) ** power


model = make("tent")
model.get_layer("spike").params["width"] = 0.5
describe(model, folder / f"{keras.config.backend()}.npz")
for variable, weight in zip(model.trainable_variables, weights):
    variable.assign(weight)
model.save(folder / f"{keras.config.backend()}.keras")
model.save_weights(folder / f"{keras.config.backend()}.weights.h5")
"""
)

READ = (
    COMMON
    + """
reader = keras.config.backend()
for file in sorted(folder.glob("*.keras")):
    # Compiled here: Keras (3.15) on torch saves an SGD that other backends load and cannot run.
    model = keras.saving.load_model(file, safe_mode=True, compile=False)
    model.compile(keras.optimizers.SGD(0.125), "mse")
    assert "tent" not in xg.rules()
    layer = model.get_layer("spike")
    assert layer.params.numbers()["width"] == 0.5, layer.params
    describe(model, folder / f"{file.stem}-{reader}.npz")
    layer.params["width"] = 4.0
    model.load_weights(folder / f"{file.stem}.weights.h5")
    assert layer.params.numbers()["width"] == 0.5, layer.params
"""
)


def run(script: str, backend: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{backend}: {done.stderr}"


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
    outputs = []
    for writer, reader in itertools.product(installed, installed):
        saved, loaded = (
            np.load(tmp_path / f"{writer}.npz"),
            np.load(tmp_path / f"{writer}-{reader}.npz"),
        )
        np.testing.assert_allclose(loaded["predicted"], saved["predicted"], rtol=0, atol=1e-6)
        for i, theirs in enumerate(expected):
            np.testing.assert_allclose(loaded[f"w{i}"], theirs, rtol=0, atol=1e-6)
            np.testing.assert_allclose(saved[f"w{i}"], theirs, rtol=0, atol=1e-6)
        outputs.append((writer, reader))
    assert len(outputs) == len(installed) ** 2
