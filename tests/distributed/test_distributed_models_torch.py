"""Models on several processes of torch: data, tensor, sequence and pipeline parallel."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..harness.distributed.ranks import Ranks, names_in, ranks_of

pytestmark = pytest.mark.needs("torch")
CHECKS = Path(__file__).parents[1] / "ranks" / "torch_models.py"
ranks = ranks_of(CHECKS, world=2, timeout=200)


@pytest.mark.parametrize("name", names_in(CHECKS))
def test_models(ranks: Ranks, name: str) -> None:
    ranks.assert_passed(name)
