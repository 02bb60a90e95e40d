"""Reductions of rules over the processes of torch's groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..harness.distributed.ranks import Ranks, names_in, ranks_of

pytestmark = pytest.mark.needs("torch")
CHECKS = Path(__file__).parents[1] / "ranks" / "torch_collectives.py"
ranks = ranks_of(CHECKS, world=2, timeout=120)


@pytest.mark.parametrize("name", names_in(CHECKS))
def test_reductions(ranks: Ranks, name: str) -> None:
    ranks.assert_passed(name)
