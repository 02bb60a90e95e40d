"""Checkpoints of sharded arrays: a training goes on, on fewer devices, as if nothing had been: a
network of flax, optax's counts and keys, schedules.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ...harness.distributed.forced_devices import forced

pytestmark = pytest.mark.needs("jax", "flax", "optax")

SCRIPT = Path(__file__).parents[2] / "harness" / "distributed" / "resumed_jax.py"


@pytest.mark.weekly
def test_training_goes_on_on_four_devices_then_two_then_one() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**os.environ, **forced(4)},
        check=False,
        timeout=110,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = json.loads(done.stdout.splitlines()[-1])
    assert [(row["devices"], row["count"]) for row in rows] == [(4, 4), (2, 7), (1, 9)]
    assert max(row["gap"] for row in rows) < 1e-6
