"""Rules on four devices, of one process and of two, as jax's automatic sharding, explicit axes,
`shard_map` and `pmap` have them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ..harness.distributed.forced_devices import forced
from ..harness.distributed.ranks import Ranks, names_in, ranks_of

pytestmark = pytest.mark.needs("jax")
RANKS = Path(__file__).parents[1] / "ranks"
ALONE = RANKS / "jax_devices.py"
SEVERAL = RANKS / "jax_processes.py"


alone = ranks_of(ALONE, world=1, timeout=110, env=forced(4))
several = ranks_of(SEVERAL, world=2, timeout=110, env=forced(2))


def needing(name: str) -> object:
    """Return a check with what it needs besides."""
    return pytest.param(name, marks=pytest.mark.needs("flax", "optax")) if "flax" in name else name


@pytest.mark.parametrize("name", list(map(needing, names_in(ALONE))))
def test_on_four_devices(alone: Ranks, name: str) -> None:
    alone.assert_passed(name)


@pytest.mark.parametrize("name", names_in(SEVERAL))
def test_on_two_processes(several: Ranks, name: str) -> None:
    several.assert_passed(name)
