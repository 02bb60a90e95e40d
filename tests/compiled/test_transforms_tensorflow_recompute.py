"""`tf.recompute_grad` runs forward again within backward, under the frame of its first forward
(`rules/in_force/test_regions.py` has more); `tf.distribute`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

from ..harness.distributed.ranks import Ranks, names_in, ranks_of
from ..harness.models.surrogates import triangle

tf: Any = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.needs("tensorflow")

Tensor: TypeAlias = Any

X = np.array([-1.3, -0.45, -0.2, 0.1, 0.3, 0.48, 0.9], np.float32)


def test_in_a_traced_step_the_rule_of_the_region_is_kept() -> None:
    f = tf.recompute_grad(xg.activation("Tanh"))

    @tf.function
    def step(x: Tensor) -> Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            with xg.use("triangular"):
                y = f(x)
        with xg.use("rectangular"):
            return tape.gradient(y, x)

    for _ in range(2):
        np.testing.assert_allclose(step(tf.constant(X)), triangle(X), rtol=1e-6, atol=1e-7)


@pytest.mark.needs("torch")
def test_a_noted_region_does_not_keep_torch_from_noting_its_own() -> None:
    import torch
    from torch.utils.checkpoint import checkpoint

    act = xg.activation("Linear")
    x = tf.constant([-1.0, 0.25, 2.0])
    with xg.use("d(ReLU)"), tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.recompute_grad(act)(x)
    assert tape.gradient(y, x).numpy().tolist() == [0.0, 1.0, 1.0]
    leaf = torch.tensor([-1.0, 0.25, 2.0], requires_grad=True)
    with xg.use("d(ReLU)"):
        output = checkpoint(act, leaf, use_reentrant=False)
    output.sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [0.0, 1.0, 1.0]


# `tf.distribute`: what is in force around the replicas, which run on threads of their own, is in
# force in them; and their steps are those of one device.


CHECKS = Path(__file__).parents[1] / "ranks" / "tensorflow_replicas.py"
mirrored = ranks_of(CHECKS, world=1, timeout=110)
workers = ranks_of(CHECKS, world=2, timeout=110)


@pytest.mark.parametrize("name", names_in(CHECKS))
def test_two_replicas_of_one_process(mirrored: Ranks, name: str) -> None:
    mirrored.assert_passed(name)


def on_workers(name: str) -> bool:
    """Return whether two workers run a check too: eager steps of two processes are those of a
    graph, and take twenty times as long; each kind of rule runs on the replicas of one.
    """
    return "jit" in name or not ("steps" in name or "each_kind" in name)


@pytest.mark.parametrize("name", filter(on_workers, names_in(CHECKS)))
def test_two_workers_of_one_replica_each(workers: Ranks, name: str) -> None:
    workers.assert_passed(name)
