"""`tf.distribute`: what is in force around the replicas, which run on threads of their own, is in
force in them; and their steps are those of one device.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ..harness.distributed.ranks import Ranks, names_in, ranks_of

pytestmark = pytest.mark.needs("tensorflow")
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
