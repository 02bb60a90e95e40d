"""Rules on shards, under `shard_map`, `pmap` and automatic sharding, mean what jax says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..harness.distributed.forced_devices import forced
from ..harness.distributed.ranks import Ranks, names_in, ranks_of

pytestmark = pytest.mark.needs("jax")
CHECKS = Path(__file__).parents[1] / "ranks" / "jax_shards.py"
ranks = ranks_of(CHECKS, world=1, timeout=110, env=forced(4))


@pytest.mark.parametrize("name", names_in(CHECKS))
def test_on_shards(ranks: Ranks, name: str) -> None:
    ranks.assert_passed(name)
