"""Workers of MultiWorkerMirroredStrategy under MULTIGRAD_CHECK_RANKS=1 that do not do the same;
each check returns what was raised on the rank.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from harness.distributed.agreement import RANK, failing, kill_second, mine, said
from harness.distributed.ranks import check

CLUSTER = {"worker": os.environ["RANKS_ADDRESSES"].split(",")}
os.environ["TF_CONFIG"] = json.dumps(
    {"cluster": CLUSTER, "task": {"type": "worker", "index": RANK}}
)  # fmt: skip

import tensorflow as tf

import multigrad as xg

act = xg.activation("Heaviside")
strategies: list[Any] = []


def start() -> None:
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=10.0)
    strategies.append(tf.distribute.MultiWorkerMirroredStrategy(communication_options=options))


def finish() -> None:
    os._exit(0)  # a cluster of which a worker was killed is not to be left in order


def wait_for_all() -> None:
    """Let no rank go on before the others have come."""

    def one() -> Any:
        return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0))

    strategies[0].run(one)


def gradient(rule: Any, **use: Any) -> Any:
    """Return the gradient of all replicas, of a forward under a rule."""
    x = tf.constant([-0.3, 0.4])
    with xg.use(rule, **use), tf.GradientTape() as tape:
        tape.watch(x)
        y = act(x)
    return tf.distribute.get_replica_context().all_reduce("sum", tape.gradient(y, x))


@check()
def ranks_that_agree() -> str:
    def run() -> None:
        traced = tf.function(lambda: strategies[0].run(gradient, ("triangular",)))
        for _ in range(3):
            traced()
            strategies[0].run(gradient, ("rectangular",))
            xg.apply_to_gradients([tf.ones(3)], "clip_norm")

    return said(run)


@check()
def different_rules_of_traced_replicas() -> str:
    rule = mine("triangular", "rectangular")
    return said(tf.function(lambda: strategies[0].run(gradient, (rule,))))


@check()
def different_params_in_eager_replicas() -> str:
    width = {"params": {"width": mine(1.0, 2.0)}}
    return said(lambda: strategies[0].run(gradient, ("triangular",), width))


@check()
def different_rules_for_gradients() -> str:
    grads = [tf.ones(3)]
    return said(lambda: xg.apply_to_gradients(grads, mine("clip_norm", "centralize")))


@check()
def a_rule_that_raises_on_one_rank() -> str:
    rule = xg.register("failing", native=True)(failing)

    def run() -> None:
        x = tf.ones(3)
        with xg.use(rule), tf.GradientTape() as tape:
            tape.watch(x)
            tape.gradient(act(x), x)

    return said(run)


@check()
def a_rank_that_comes_too_late() -> str:
    wait_for_all()
    time.sleep(mine(0.0, 2.0 * float(os.environ["MULTIGRAD_CHECK_RANKS_TIMEOUT"])))
    return said(lambda: xg.apply_to_gradients([tf.ones(3)], "clip_norm"))


@check()
def a_rank_that_is_killed() -> str:
    wait_for_all()  # after what came too late
    traced = tf.function(lambda: strategies[0].run(gradient, ("triangular",)))
    traced()
    kill_second()

    def run() -> None:
        with xg.use("straight_through", scope="params"):
            traced()

    return said(run)
