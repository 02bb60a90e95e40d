"""Checks of rules on DTensors of `tf.experimental.dtensor`, over a mesh of two devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from harness.distributed.ranks import check

import multigrad as xg

Tensor = Any
tanh = xg.activation("Tanh")  # leaves it to what follows which devices there are
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
dtensor = tf.experimental.dtensor
MESH = dtensor.create_mesh([("batch", 2)], devices=["CPU:0", "CPU:1"])
SHARDED = dtensor.Layout(["batch", dtensor.UNSHARDED], MESH)
WHOLE = dtensor.Layout.replicated(MESH, 2)
X = tf.constant(np.random.default_rng(0).normal(size=(4, 3)))


def sharded(x: Tensor) -> Tensor:
    return dtensor.relayout(dtensor.copy_to_mesh(x, WHOLE), SHARDED)


def gradient(x: Tensor) -> Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tanh(x) ** 2)
    return tape.gradient(loss, x)


@check(mode=("eager", "function"))
def a_dtensor_has_the_gradients_norms_and_draws_of_the_whole_array(mode: str) -> None:
    for rule in ("triangular", "clip_norm", "centralize", "full_jam"):
        f = gradient if mode == "eager" else tf.function(gradient)
        with xg.use(rule, key=7):
            expected = gradient(X)
        with xg.use(rule, key=7), dtensor.default_mesh(MESH):
            found = f(sharded(X))
        assert dtensor.fetch_layout(found).sharding_specs == ["batch", dtensor.UNSHARDED]
        whole = dtensor.relayout(found, WHOLE).numpy()
        np.testing.assert_allclose(whole, expected, rtol=1e-14, atol=1e-16)


def by_mean_of_examples(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out * xg.xp.mean(xg.xp.moveaxis(tin, 0, -1), axis=-1)


@check()
def all_shards_of_a_dtensor_are_one_array_and_one_alone_is_refused() -> None:
    for rule in ("clip_norm", xg.compose(by_mean_of_examples)):
        with xg.use(rule):
            expected = gradient(X)
        with xg.use(rule, over="global"), dtensor.default_mesh(MESH):
            found = dtensor.relayout(gradient(sharded(X)), WHOLE).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-14)
    with dtensor.default_mesh(MESH):
        try:
            with xg.use("clip_norm", over="shard"):
                gradient(sharded(X))
            raise AssertionError("the rule acted on a shard that nobody has")
        except xg.UnsupportedOp as error:
            said = str(error)
    assert "over='shard' of a DTensor of layout ['batch', 'unsharded']" in said, said
