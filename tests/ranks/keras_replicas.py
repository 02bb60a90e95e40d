"""Checks of Keras models that `fit` on two replicas of TensorFlow's MirroredStrategy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from harness.distributed import resumed_keras
from harness.distributed.ranks import check

import multigrad as xg
import multigrad.keras as xk

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
STRATEGY: Any = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
BATCH, EPOCHS, RATE, MOST = 8, 4, 0.1, 0.05
CLIP: Any = {"max_norm": MOST}
random = np.random.default_rng(0)
x, y = (random.normal(size=(2 * BATCH, n)).astype(np.float32) for n in (8, 3))


def tanh() -> Any:
    return keras.layers.Activation("tanh")


def heaviside() -> Any:
    return xk.Activation("Heaviside")


def annealed() -> Any:
    schedule = xg.schedule.linear(2.0, 0.5, steps=6)
    return xk.Activation("Heaviside", rule="triangular", params={"width": schedule})


def clipped(optimizer: Any) -> Any:
    return xk.apply_to_gradients(optimizer, "clip_norm", CLIP)


def clipped_after(optimizer: Any) -> Any:
    return xk.apply_to_gradients(optimizer, "clip_norm", CLIP, after_reduce=True)


def halved_and_clipped_after(optimizer: Any) -> Any:
    return xk.apply_to_gradients(clipped_after(optimizer), "scale", {"s": 0.5})


def same(optimizer: Any) -> Any:
    return optimizer


# By name: the layer, what is put around the optimizer, and on the model.
KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], bool]] = {
    "use": (heaviside, same, False),
    "schedule": (annealed, same, False),
    "attach": (tanh, same, True),
    "clipped": (tanh, clipped, False),
    "halved_and_clipped_after": (tanh, halved_and_clipped_after, False),
}


def make(kind: str, eagerly: bool) -> Any:
    layer, around, is_attached = KINDS[kind]
    keras.utils.set_random_seed(0)
    model: Any = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(6), layer(), keras.layers.Dense(3)]
    )
    if is_attached:
        xg.attach(model, {"activation*": "triangular"})
    model.compile(around(keras.optimizers.SGD(RATE)), "mse", run_eagerly=eagerly)
    return model


def fit(kind: str, eagerly: bool, scope: Any) -> list[Any]:
    """Return the weights after some epochs of two batches."""
    with scope:
        model = make(kind, eagerly)
    callbacks = [xk.Anneal()] if kind == "schedule" else None
    with xg.use("triangular") if kind == "use" else contextlib.nullcontext():
        model.fit(x, y, BATCH, EPOCHS, verbose=0, shuffle=False, callbacks=callbacks)
    return [np.asarray(weight) for weight in model.trainable_weights]


EQUAL = ("use", "schedule", "attach", "halved_and_clipped_after")


@check(kind=EQUAL)
def fit_on_two_replicas_is_fit_on_one_device(kind: str) -> None:
    expected = fit(kind, False, contextlib.nullcontext())
    for weight, one in zip(fit(kind, False, STRATEGY.scope()), expected, strict=True):
        np.testing.assert_allclose(weight, one, rtol=0, atol=1e-6)


@check()
def a_use_around_fit_run_eagerly_reaches_the_replicas() -> None:
    expected = fit("use", True, contextlib.nullcontext())
    for weight, one in zip(fit("use", True, STRATEGY.scope()), expected, strict=True):
        np.testing.assert_allclose(weight, one, rtol=0, atol=1e-6)


@check()
def a_rule_of_the_optimizer_acts_on_each_replicas_own_gradients_unless_told() -> None:
    model = make("clipped", eagerly=True)
    model(x)
    for _ in range(EPOCHS):
        for batch in (slice(0, BATCH), slice(BATCH, 2 * BATCH)):
            weights = model.trainable_weights
            totals = [0.0] * len(weights)
            for part in np.split(np.arange(2 * BATCH)[batch], 2):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((model(x[part]) - y[part]) ** 2) / 2
                for i, grad in enumerate(tape.gradient(loss, weights)):
                    totals[i] += grad * tf.minimum(1.0, MOST / tf.norm(grad))
            for weight, total in zip(weights, totals, strict=True):
                weight.assign_sub(RATE * total)
    found = fit("clipped", False, STRATEGY.scope())
    for weight, one in zip(found, model.trainable_weights, strict=True):
        np.testing.assert_allclose(weight, np.asarray(one), rtol=0, atol=1e-6)


@check()
def an_optimizer_says_in_its_config_that_its_rule_acts_after_the_reduction() -> None:
    optimizer = clipped_after(keras.optimizers.SGD(RATE))
    again = type(optimizer).from_config(optimizer.get_config())
    assert again.after_reduce
    assert not clipped(keras.optimizers.SGD(RATE)).after_reduce


@check()
def training_goes_on_on_two_devices_then_one_then_two() -> None:
    resumed_keras.check_training(STRATEGY)
