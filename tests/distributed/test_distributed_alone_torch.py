"""What a group of processes changes in torch, on one process: sharded parameters, draws, DDP."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..harness.distributed.ranks import Ranks, names_in, ranks_of

pytestmark = pytest.mark.needs("torch")
CHECKS = Path(__file__).parents[1] / "ranks" / "torch_alone.py"
ranks = ranks_of(CHECKS, world=1, timeout=100)


@pytest.mark.parametrize("name", names_in(CHECKS))
def test_alone(ranks: Ranks, name: str) -> None:
    ranks.assert_passed(name)
