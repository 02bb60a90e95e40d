"""A DTensor of TensorFlow is one array over a mesh: a rule on it is the rule on the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..harness.distributed.ranks import Ranks, names_in, ranks_of

pytestmark = pytest.mark.needs("tensorflow")
CHECKS = Path(__file__).parents[1] / "ranks" / "tensorflow_dtensors.py"
mesh = ranks_of(CHECKS, world=1, timeout=100)


@pytest.mark.parametrize("name", names_in(CHECKS))
def test_dtensors(mesh: Ranks, name: str) -> None:
    mesh.assert_passed(name)
