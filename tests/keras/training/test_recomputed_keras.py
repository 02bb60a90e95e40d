"""A layer whose params are Variables inside of a region that runs forward again within backward."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numpy as np
import pytest

import multigrad as xg

tf: Any = pytest.importorskip("tensorflow")
keras: Any = pytest.importorskip("keras")
xk: Any = pytest.importorskip("multigrad.keras")

pytestmark = [
    pytest.mark.needs("keras", "tensorflow"),
    pytest.mark.skipif(
        os.environ.get("KERAS_BACKEND") != "tensorflow", reason="tf.recompute_grad is TensorFlow's"
    ),
]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_layer_with_params_runs_again_under_its_own_rule(compiled: bool) -> None:
    layer = xk.Activation("Heaviside", rule="triangular", params={"width": 2.0})
    values = np.linspace(-1.5, 1.5, 7, dtype=np.float32)
    layer.build(values.shape)
    region = tf.recompute_grad(lambda x: layer(x) * 3.0)

    def grad(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = region(x)
        with xg.use("scale", {"s": 7.0}):
            return tape.gradient(y, x)

    grad = tf.function(grad) if compiled else grad
    for width in (2.0, 0.75):
        layer.params["width"].assign(width)
        expected = 3.0 * np.maximum(0.0, 1.0 - np.abs(values) / width)
        np.testing.assert_allclose(grad(tf.constant(values)), expected, rtol=1e-6)


# --- what has changed between the two runs --------------------------------------------------------


def rematerialized(rule: Any = None) -> Any:
    keras.utils.set_random_seed(3)
    with keras.RematScope(mode="full"):
        layers = [
            keras.Input((4,)),
            keras.layers.Dense(4, activation="relu"),
            keras.layers.ReLU(name="gate"),
        ]
        if rule is not None:
            layers.append(xk.Activation("ReLU", rule))
        return keras.Sequential(layers)


def gradient_after(model: Any, change: Any) -> Any:
    x = tf.constant(np.cos(np.arange(8.0, dtype=np.float32)).reshape(2, 4) + 0.5)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(model(x) ** 2)
    change()
    return tape.gradient(y, x).numpy()


@pytest.mark.parametrize("place", ["gate", "relu", "activation"])
def test_a_schedule_stepped_before_backward_acts_at_the_next_forward(place: str) -> None:
    width = xg.schedule.linear(2.0, 4.0, steps=1)
    rule = xg.get("triangular").with_params(width=width)
    model = rematerialized(rule if place == "activation" else None)
    with contextlib.ExitStack() as stack:
        if place != "activation":
            stack.enter_context(xg.attach(model, {place: rule}))
        before = gradient_after(model, list)
        np.testing.assert_allclose(gradient_after(model, width.step), before, rtol=1e-6)
        assert np.abs(gradient_after(model, list) - before).max() > 1e-3


@pytest.mark.parametrize("selector", ["gate", "relu", "*dense*"])
def test_rules_that_are_detached_before_backward_are_missed_loudly(selector: str) -> None:
    model = rematerialized()
    model.build((None, 4))
    own = gradient_after(model, list)
    handle = xg.attach(model, {selector: lambda ctx, grad_out, tin: grad_out * 3.0})
    with pytest.raises(xg.GradientError, match="were detached since its forward"):
        gradient_after(model, handle.detach)
    np.testing.assert_array_equal(gradient_after(model, list), own)
