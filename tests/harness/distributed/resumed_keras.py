"""A training interrupted twice, on two, one and two devices: Keras on TensorFlow and jax."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

import multigrad as xg
import multigrad.keras as xk

BACKEND = keras.backend.backend()
if BACKEND == "tensorflow":
    import tensorflow as tf
DOORS = ("own", "file")  # how the first and the second interruption is survived
LEGS = ((0, 4), (4, 7), (7, 10))

rng = np.random.default_rng(20261122)
X = rng.normal(size=(80, 4)).astype("float32")
Y = rng.normal(size=(80, 2)).astype("float32")


def scope(leg: int, two: Any) -> Any:
    """Return where the model of a leg is made: on two devices but for the second one."""
    if BACKEND == "tensorflow":
        return (tf.distribute.MirroredStrategy(["CPU:0"]) if leg == 1 else two).scope()
    distribution = keras.distribution
    if leg == 1:
        return contextlib.nullcontext()
    devices = distribution.list_devices()[:2]
    if leg == 0:
        return distribution.DataParallel(devices=devices).scope()
    mesh = distribution.DeviceMesh((1, 2), ["batch", "model"], devices=devices)
    layouts = distribution.LayoutMap(mesh)
    layouts["first/kernel"] = (None, "model")
    layouts["last/kernel"] = ("model", None)
    return distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch").scope()


def make() -> Any:
    keras.utils.set_random_seed(0)
    width = xg.schedule.linear(3.0, 0.5, steps=20)
    scale = xg.schedule.linear(1.0, 0.1, steps=20)
    layers = [
        keras.Input((4,)),
        keras.layers.Dense(4, name="first"),
        xk.Activation("Heaviside", "triangular", {"width": width}, name="spikes"),
        keras.layers.Dense(2, name="last"),
    ]
    model = keras.Sequential(layers, name="network")
    optimizer = xk.apply_to_gradients(keras.optimizers.Adam(0.05), "scale", {"s": scale})
    model.compile(optimizer, "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def fit(model: Any, first: int, last: int) -> None:
    part = slice(8 * first, 8 * last)
    callbacks = [xk.Anneal()]
    model.fit(X[part], Y[part], batch_size=8, shuffle=False, verbose=0, callbacks=callbacks)


def leave(model: Any, door: str) -> Callable[[], Any]:
    """Save a model by Keras's file or the framework's own door; return what takes over."""
    path = Path(tempfile.mkdtemp()) / "model.keras"
    if door == "file":
        model.save(path)
        return partial(keras.models.load_model, path)
    tree = None
    if BACKEND == "tensorflow":
        tf.train.Checkpoint(model=model).write(str(path))
    else:  # what orbax is given
        tree = model.get_state_tree("numpy_array")

    def take_over() -> Any:
        other = make()
        if tree is None:
            tf.train.Checkpoint(model=other).read(str(path)).assert_consumed()
        else:
            other.set_state_tree(tree)
        return other

    return take_over


def trained(model: Any) -> list[Any]:
    return [np.array(keras.ops.convert_to_numpy(each.value)) for each in model.trainable_variables]


def counts(model: Any) -> list[int]:
    layer = model.get_layer("spikes")
    return [layer.params.schedules["width"].count, model.optimizer.params.schedules["s"].count]


def check_training(two: Any = None) -> None:
    """Compare the trained weights with those of a training on one device without an interruption,
    and where the schedules stood when each part began.

    Args:
        two: the strategy of two replicas, on TensorFlow.
    """
    model = make()
    fit(model, 0, LEGS[-1][1])
    expected, take_over, found = trained(model), make, []
    for leg, (first, last) in enumerate(LEGS):
        keras.utils.clear_session()  # a state tree holds Variables by names that are counted
        with scope(leg, two):
            model = take_over()
            found.append(counts(model))
            fit(model, first, last)
        if leg < len(DOORS):
            take_over = leave(model, DOORS[leg])
    assert found == [[0, 0], [4, 4], [7, 7]]
    for ours, theirs in zip(trained(model), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
