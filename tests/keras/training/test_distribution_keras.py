"""Keras's training on several devices: steps are those of one, whether `keras.distribution` shards
data on devices of jax or `fit` runs on replicas of `tf.distribute`.

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

pytestmark = pytest.mark.needs("keras")
KERAS_BACKEND = os.environ.get("KERAS_BACKEND")
RANKS = Path(__file__).parents[2] / "ranks"
devices = ranks_of(RANKS / "keras_devices.py", world=1, timeout=300, env=forced(4))
replicas = ranks_of(RANKS / "keras_replicas.py", world=1, timeout=240)


@pytest.mark.skipif(KERAS_BACKEND != "jax", reason="Keras distributes data on jax alone")
@pytest.mark.parametrize("name", names_in(RANKS / "keras_devices.py"))
def test_on_four_devices(devices: Ranks, name: str) -> None:
    devices.assert_passed(name)


@pytest.mark.skipif(KERAS_BACKEND != "tensorflow", reason="tf.distribute is TensorFlow's")
@pytest.mark.parametrize("name", names_in(RANKS / "keras_replicas.py"))
def test_replicas_of_keras(replicas: Ranks, name: str) -> None:
    replicas.assert_passed(name)
