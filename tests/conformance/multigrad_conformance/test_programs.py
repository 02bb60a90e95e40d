"""Random programs from the op table, emitted for a backend, against float64 with a bound on
rounding.

125 programs by default; MULTIGRAD_PROGRAMS asks for more, MULTIGRAD_SEED for others. A failure is
shrunk and printed as the graph and the elements that differ. See `multigrad_conformance/programs/`.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="random programs need hypothesis: pip install hypothesis")

from .programs.attributes import TAKING_PART
from .programs.running import check_random

PROGRAMS = int(os.environ.get("MULTIGRAD_PROGRAMS", "125"))
SEED = int(os.environ.get("MULTIGRAD_SEED", "0"))
SHARD = 25  # programs of one test, so that workers can share them, and some be drawn


@pytest.mark.parametrize("shard", range(-(-PROGRAMS // SHARD)))
def test_random_programs_give_the_numbers_of_the_interpreter(
    backend: Any, compiling: bool, shard: int
) -> None:
    table = [op for op in TAKING_PART if op not in backend.row.kernels.unsupported]
    compiled = [backend.name] if compiling else []
    tally = check_random([backend], SEED + 1000 + shard, SHARD, compiled, table=table)
    assert tally.programs == SHARD
    assert len(tally.ops) > len(table) / 4
    assert tally.compared >= 0.8 * tally.elements, "too much is left to rounding"
