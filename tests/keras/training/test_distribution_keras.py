"""`keras.distribution` on devices that jax is told to see: steps are those of one device.

Keras (3.15) shards data on jax alone: its module for TensorFlow is a prototype that distributes
nothing, and for torch there is none. The devices are forced before jax starts, so the model trains
in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ...harness.distributed.forced_devices import forced
from ...harness.distributed.ranks import Ranks, names_in, ranks_of

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

def train(rule):
    layer = xk.Activation("Heaviside", rule=rule)
    layers = [keras.layers.Dense(6), layer, keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(keras.optimizers.SGD(given["rate"]), "mse")
    for width in given["widths"]:
        for variable, value in zip(model.trainable_weights, weights):
            variable.assign(value)
        if rule:
            layer.params["width"].assign(width)
        with xg.use("triangular", params={"width": width}):
            model.fit(x, y, batch_size=len(x), shuffle=False, verbose=0)
        yield [np.asarray(variable).tolist() for variable in model.trainable_weights]
    assert len(model.layers[0].kernel.value.sharding.device_set) == 2

print(json.dumps([list(train(rule)) for rule in given["rules"]]))
"""


def test_steps_on_two_devices_are_those_of_one(network: Any) -> None:
    widths = [2.0, 0.75]
    arrays = [array.tolist() for array in (network.x, network.y, *network.weights)]
    rules = ["triangular", None]  # the layer's own, and that in force
    given = {"arrays": arrays, "rules": rules, "rate": network.rate, "widths": widths}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(given),
        check=False,
        timeout=300,
        text=True,
        capture_output=True,
        env={**os.environ, **forced(2)},
    )
    assert done.returncode == 0, done.stderr
    for steps in json.loads(done.stdout.splitlines()[-1]):
        for width, trained in zip(widths, steps, strict=True):
            expected = network.step(lambda x, w=width: network.surrogates["triangular"](x, w))
            for ours, theirs in zip(trained, expected, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


CHECKS = Path(__file__).parents[2] / "ranks" / "keras_devices.py"
ranks = ranks_of(CHECKS, world=1, timeout=300, env=forced(4))


@pytest.mark.parametrize("name", names_in(CHECKS))
def test_on_four_devices(ranks: Ranks, name: str) -> None:
    ranks.assert_passed(name)
