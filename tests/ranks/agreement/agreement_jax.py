"""Ranks of `jax.distributed` under MULTIGRAD_CHECK_RANKS=1 that do not do the same; each check
returns what was raised on the rank.
"""

from __future__ import annotations

import os
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness.distributed.agreement import RANK, failing, kill_second, mine, said
from harness.distributed.ranks import check
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import multigrad as xg

act = xg.activation("Heaviside")


def start() -> None:
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    jax.distributed.initialize(address, 2, RANK, heartbeat_timeout_seconds=30)


def finish() -> None:
    os._exit(0)  # jax would wait for the killed rank


def sharded() -> Any:
    """Return an array of which each rank has a row."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    own = np.full((1, 4), RANK - 0.3, np.float32)
    return jax.make_array_from_process_local_data(
        NamedSharding(mesh, PartitionSpec("data")), own, (2, 4)
    )


def loss(x: Any) -> Any:
    return act(x).sum()


@check()
def ranks_that_agree() -> str:
    step = jax.jit(jax.grad(loss))

    @jax.jit
    @xg.use("rectangular")
    def within(x: Any) -> Any:
        return jax.grad(loss)(x)

    def run() -> None:
        x = sharded()
        for number in range(3):
            with xg.use("triangular", params={"width": 1.0 + number}):
                jax.block_until_ready(step(x))
            jax.block_until_ready(within(x))
            xg.apply_to_gradients([jnp.ones(3)], "clip_norm")

    return said(run)


@check()
def different_rules_around_compiled_code() -> str:
    step = jax.jit(jax.grad(loss))

    def run() -> None:
        with xg.use(mine("triangular", "rectangular")):
            jax.block_until_ready(step(sharded()))

    return said(run)


@check()
def different_rules_within_compiled_code() -> str:
    def step(x: Any) -> Any:
        with xg.use("triangular", params={"width": mine(1.0, 2.0)}):
            return jax.grad(loss)(x)

    return said(lambda: jax.jit(step)(sharded()))


@check()
def different_rules_of_eager_layers() -> str:
    layer = xg.activation("ReLU", mine("triangular", "rectangular"))

    def run() -> None:
        with xg.use("straight_through"):
            layer(jnp.ones(3))

    return said(run)


@check()
def different_rules_for_gradients() -> str:
    grads = [jnp.ones(3)]
    return said(lambda: xg.apply_to_gradients(grads, "clip_norm", {"max_norm": mine(1.0, 2.0)}))


@check()
def a_rule_that_raises_on_one_rank() -> str:
    rule = xg.register("failing", native=True)(failing)

    def run() -> None:
        with xg.use(rule):
            jax.jit(jax.grad(loss))(jnp.ones(3))

    return said(run)


@check()
def a_rank_that_comes_too_late() -> str:
    def run() -> None:
        with xg.use("triangular"):
            act(jnp.ones(3))

    time.sleep(mine(0.0, 2.0 * float(os.environ["MULTIGRAD_CHECK_RANKS_TIMEOUT"])))
    return said(run)


@check()
def a_rank_that_is_killed() -> str:
    step = jax.jit(jax.grad(lambda x: loss(x) ** 2))  # it sums over both ranks

    def run() -> None:
        with xg.use("triangular"):
            jax.block_until_ready(step(sharded()))

    run()
    kill_second()
    return said(run)
