"""`keras.distribution.DataParallel` on two devices that jax is told to see: a step is that of one
device.

Keras (3.15) shards data on jax alone: its module for TensorFlow is a prototype that distributes
nothing, and for torch there is none. The devices are forced before jax starts, so the model trains
in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.needs("keras"),
    pytest.mark.skipif(
        os.environ.get("KERAS_BACKEND") != "jax", reason="Keras distributes data on jax alone"
    ),
]

SCRIPT = """
import json, sys
import jax, keras, numpy as np
import multigrad as xg, multigrad.keras as xk

given = json.loads(sys.stdin.read())
x, y, *weights = (np.asarray(a, np.float32) for a in given["arrays"])
keras.distribution.set_distribution(keras.distribution.DataParallel())
layer = xk.Activation("Heaviside", rule=given["rule"])
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(6), layer, keras.layers.Dense(3)])
model.compile(keras.optimizers.SGD(given["rate"]), "mse")
found = []
for width in given["widths"]:
    for variable, value in zip(model.trainable_weights, weights):
        variable.assign(value)
    if given["rule"]:
        layer.params["width"].assign(width)
    with xg.use("triangular", params={"width": width}):
        model.fit(x, y, batch_size=len(x), shuffle=False, verbose=0)
    found.append([np.asarray(variable).tolist() for variable in model.trainable_weights])
sharding = model.layers[0].kernel.value.sharding
print(json.dumps({"devices": len(sharding.device_set), "weights": found}))
"""


@pytest.mark.parametrize("rule", ["triangular", None])
def test_a_step_on_two_devices_is_that_of_one(network: Any, rule: str | None) -> None:
    widths = [2.0, 0.75]
    arrays = [array.tolist() for array in (network.x, network.y, *network.weights)]
    given = {"arrays": arrays, "rule": rule, "rate": network.rate, "widths": widths}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(given),
        check=False,
        timeout=300,
        text=True,
        capture_output=True,
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["devices"] == 2
    for width, trained in zip(widths, found["weights"], strict=True):
        expected = network.step(lambda x, w=width: network.surrogates["triangular"](x, w))
        for ours, theirs in zip(trained, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
