"""Rules in two processes of `jax.distributed`, of two devices each, whose exchange is gloo's."""

from __future__ import annotations

import functools
import os
from typing import Any

import jax
import numpy as np
import pytest
from harness.distributed import training_jax
from harness.distributed.ranks import check
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import multigrad as xg

KINDS = ("elementwise", "norm", "random", "function", "gradients")
RANK = int(os.environ["RANK"])
X = np.random.default_rng(0).standard_normal((8, 12)).astype(np.float32)


def start() -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    address = f"127.0.0.1:{os.environ['MASTER_PORT']}"
    jax.distributed.initialize(address, 2, RANK, initialization_timeout=60)
    assert (jax.device_count(), jax.local_device_count()) == (4, 2)


def finish() -> None:
    jax.distributed.shutdown()


def line() -> Any:
    return jax.make_mesh((4,), ("b",), axis_types=(AxisType.Auto,))


def place(x: Any, spec: P) -> Any:
    """Return an array of all processes, of which this one gives its part."""
    sharding = NamedSharding(line(), spec)
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def whole(x: Any) -> Any:
    return jax.tree.map(lambda leaf: multihost_utils.process_allgather(leaf, tiled=True), x)


@check(kind=KINDS, way=("automatic", "shard_map"))
def trains_as_one_device(kind: str, way: str) -> None:
    with jax.enable_x64(True):
        x, y = (place(a, P("b")) for a in (training_jax.X, training_jax.Y))
        weights = {name: place(w, P()) for name, w in training_jax.WEIGHTS.items()}
        run = (
            jax.jit(functools.partial(training_jax.train, kind=kind))
            if way == "automatic"
            else training_jax.mapped(line(), kind, check_vma=True)
        )
        found = run(weights, x, y)
        training_jax.assert_same({n: np.asarray(w.addressable_data(0)) for n, w in found.items()},
                                 kind)  # fmt: skip


@check(compiled=(True, False))
def draws_are_those_of_one_device(compiled: bool) -> None:
    def loss(x: Any) -> Any:
        with xg.use("full_jam", key=7):
            return (xg.activation("Linear")(x) * jax.lax.stop_gradient(x)).sum()

    run = jax.grad(loss)
    found = (jax.jit(run) if compiled else run)(place(X, P("b")))
    assert found.sharding.spec == P("b")
    np.testing.assert_array_equal(whole(found), run(X))


@check()
def gradients_and_numbers_that_move_are_those_of_one_device() -> None:
    act = xg.activation("Heaviside")
    run = xg.jit(jax.grad(lambda x: (act(x) * x).sum()))
    for width in (1.0, 2.0):
        with xg.use("triangular", params={"width": width}):
            np.testing.assert_allclose(
                whole(run(place(X, P("b")))), jax.grad(lambda x: (act(x) * x).sum())(X), rtol=1e-6
            )
    for over in (None, "global"):
        found = xg.apply_to_gradients({"w": place(X, P("b"))}, "clip_norm", over=over)["w"]
        expected = X / max(1.0, float(np.linalg.norm(X)))
        np.testing.assert_allclose(whole(found), expected, rtol=1e-5)


@check()
def an_array_of_one_process_is_no_part_of_one() -> None:
    act = xg.activation("Linear", "clip_norm", over="global")
    with pytest.raises(xg.GradientError, match=rf"process {RANK}'s own, one of 2"):
        jax.grad(lambda x: (act(x) ** 2).sum())(jax.numpy.asarray(X))
    with pytest.raises(xg.GradientError, match="make_array_from_process_local_data"):
        xg.apply_to_gradients([jax.numpy.asarray(X)], "clip_norm", over="global")
