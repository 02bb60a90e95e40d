"""Checkpoints of sharded arrays: a training goes on, on fewer devices, as if nothing had been: a
network of flax, optax's counts and keys, schedules.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ...harness.distributed.forced_devices import forced
from ...harness.hidden import python

pytestmark = pytest.mark.needs("jax", "flax", "optax")

SCRIPT = Path(__file__).parents[2] / "harness" / "distributed" / "resumed_jax.py"


def test_training_goes_on_on_four_devices_then_two_then_one() -> None:
    printed = python(str(SCRIPT), timeout=110, **forced(4))
    rows = json.loads(printed.splitlines()[-1])
    assert [(row["devices"], row["count"]) for row in rows] == [(4, 4), (2, 7), (1, 9)]
    assert max(row["gap"] for row in rows) < 1e-6
