"""Models under `keras.distribution` on four devices that jax is told to see."""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import functools
import os
import tempfile
from typing import Any

import jax
import keras
import numpy as np
from harness.distributed import resumed_keras
from harness.distributed.ranks import check

import multigrad as xg
import multigrad.keras as xk

WAYS = ("data", "model")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((8, 6)).astype(np.float32)
Y = RNG.standard_normal((8, 4)).astype(np.float32)
STEPS = 100  # of training


def distribution(way: str) -> Any:
    devices = keras.distribution.list_devices()
    if way == "alone":
        return None
    if way == "data":
        return keras.distribution.DataParallel(devices=devices)
    mesh = keras.distribution.DeviceMesh((2, 2), ["batch", "model"], devices)
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*first/kernel"] = (None, "model")
    layouts[".*first/bias"] = ("model",)
    layouts[".*last/kernel"] = ("model", None)
    return keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")


def build(rule: Any = "triangular", width: Any = 2.0) -> Any:
    """Return a model with a rule in a layer, in a layer's activation, and in its optimizer."""
    keras.utils.set_random_seed(3)
    layers = [
        keras.Input((6,)),
        keras.layers.Dense(8, name="first"),
        xk.Activation("Tanh", rule=rule, params={"width": width}, name="rule"),
        keras.layers.Dense(4, activation=xk.activation("Tanh", "clip_norm"), name="last"),
    ]
    model = keras.Sequential(layers)
    optimizer = xk.apply_to_gradients(
        keras.optimizers.SGD(0.05, momentum=0.5), "clip_norm", {"max_norm": 0.5}
    )
    model.compile(optimizer, "mse")
    return model


def fit(model: Any, steps: int, **options: Any) -> list[Any]:
    model.fit(X, Y, batch_size=8, epochs=steps, shuffle=False, verbose=0, **options)
    return list(map(np.asarray, model.get_weights()))


@functools.lru_cache
def trained(way: str) -> list[Any]:
    """Return the weights after the steps; the width moves half-way, without a retrace."""
    keras.distribution.set_distribution(distribution(way))
    model = build()
    fit(model, STEPS // 2)
    model.get_layer("rule").params["width"].assign(0.5)
    return fit(model, STEPS // 2)


def same(found: Any, expected: Any) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


@check(way=WAYS)
def a_model_trains_as_on_one_device(way: str) -> None:
    found, expected = trained(way), trained("alone")
    same(found, expected)
    keras.distribution.set_distribution(None)
    assert np.abs(expected[0] - np.asarray(build().get_weights()[0])).max() > 1e-2


@check(way=WAYS)
def the_number_of_a_rule_is_on_every_device_and_gradients_where_weights_are(way: str) -> None:
    keras.distribution.set_distribution(distribution(way))
    model = build()
    width = model.get_layer("rule").params["width"].value
    assert len(width.sharding.device_set) == 4 and width.sharding.is_fully_replicated
    kernel = model.get_layer("first").kernel
    before = kernel.value.sharding
    fit(model, 1)
    assert kernel.value.sharding == before
    assert before.is_fully_replicated == (way == "data")
    momentum = next(v for v in model.optimizer.variables if v.shape == kernel.shape)
    assert momentum.value.sharding.is_equivalent_to(before, 2)


@check(way=WAYS)
def a_schedule_moves_and_is_saved_and_loaded(way: str) -> None:
    keras.distribution.set_distribution(None)
    expected = build(width=xg.schedule.linear(2.0, 0.5, steps=6))
    fit(expected, 6, callbacks=[xk.Anneal()])
    keras.distribution.set_distribution(distribution(way))
    model = build(width=xg.schedule.linear(2.0, 0.5, steps=6))
    fit(model, 3, callbacks=[xk.Anneal()])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        again = keras.models.load_model(path)
        keras.distribution.set_distribution(None)
        alone = keras.models.load_model(path)
        found_alone = fit(alone, 3, callbacks=[xk.Anneal()])
    keras.distribution.set_distribution(distribution(way))
    width = again.get_layer("rule").params["width"]
    np.testing.assert_allclose(np.asarray(width), 1.25, rtol=1e-6)
    assert len(width.value.sharding.device_set) == 4
    found = fit(again, 3, callbacks=[xk.Anneal()])
    np.testing.assert_allclose(np.asarray(width), 0.5, rtol=1e-6)
    same(found, expected.get_weights())
    same(found_alone, expected.get_weights())


@check(kind=("attached", "random", "in force"), way=WAYS)
def a_rule_acts_on_shards_as_on_one_device(kind: str, way: str) -> None:
    def weights(chosen: str) -> list[Any]:
        keras.distribution.set_distribution(distribution(chosen))
        keras.utils.set_random_seed(3)
        act = {
            "attached": keras.layers.Activation("tanh", name="act"),
            "random": xk.Activation("Linear", rule="full_jam"),
            "in force": xk.Activation("Heaviside"),
        }[kind]
        layers = [keras.layers.Dense(8, name="first"), act, keras.layers.Dense(4, name="last")]
        model = keras.Sequential([keras.Input((6,)), *layers])
        if kind == "attached":
            xg.attach(model, {"act": xg.get("triangular").with_params(width=0.5)})
        model.compile(keras.optimizers.SGD(0.5), "mse")
        for width in (2.0, 0.75):
            with xg.use("triangular", params={"width": width}):
                found = fit(model, 1)
        return found

    same(weights(way), weights("alone"))


@check()
def training_goes_on_on_two_devices_then_one_then_two() -> None:
    keras.distribution.set_distribution(None)
    resumed_keras.check_training()


def finish() -> None:
    assert jax.device_count() == 4
