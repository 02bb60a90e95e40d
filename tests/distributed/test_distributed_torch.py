"""Rules on two processes of torch: DTensors, data, tensor and pipeline parallel models."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..harness.distributed.ranks import Ranks, names_in, ranks_of

pytestmark = pytest.mark.needs("torch")
RANKS = Path(__file__).parents[1] / "ranks"
CHECKS = RANKS / "torch_dtensors.py", RANKS / "torch_models.py"
ranks = ranks_of(*CHECKS, world=2, timeout=110)


@pytest.mark.parametrize("name", names_in(*CHECKS))
def test_on_two_processes(ranks: Ranks, name: str) -> None:
    ranks.assert_passed(name)
