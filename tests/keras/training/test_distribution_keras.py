"""`keras.distribution` on devices that jax is told to see: steps are those of one device.

Keras (3.15) shards data on jax alone: its module for TensorFlow is a prototype that distributes
nothing, and for torch there is none. The devices are forced before jax starts, so all checks run in
one process of their own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ...harness.distributed.forced_devices import forced
from ...harness.distributed.ranks import Ranks, names_in, ranks_of

pytestmark = [
    pytest.mark.needs("keras"),
    pytest.mark.skipif(
        os.environ.get("KERAS_BACKEND") != "jax", reason="Keras distributes data on jax alone"
    ),
]

CHECKS = Path(__file__).parents[2] / "ranks" / "keras_devices.py"
ranks = ranks_of(CHECKS, world=1, timeout=300, env=forced(4))


@pytest.mark.parametrize("name", names_in(CHECKS))
def test_on_four_devices(ranks: Ranks, name: str) -> None:
    ranks.assert_passed(name)
