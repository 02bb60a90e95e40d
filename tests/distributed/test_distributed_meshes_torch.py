"""Rules on a mesh of two dimensions of torch: four processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..harness.distributed.ranks import Ranks, names_in, ranks_of

pytestmark = pytest.mark.needs("torch")
CHECKS = Path(__file__).parents[1] / "ranks" / "torch_meshes.py"
ranks = ranks_of(CHECKS, world=4, timeout=110)


@pytest.mark.parametrize("name", names_in(CHECKS))
def test_meshes(ranks: Ranks, name: str) -> None:
    ranks.assert_passed(name)
