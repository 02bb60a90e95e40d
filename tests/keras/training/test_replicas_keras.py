"""Keras's `fit` on replicas of `tf.distribute`: rules in layers, in the optimizer, around it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ...harness.distributed.ranks import Ranks, names_in, ranks_of

pytestmark = [
    pytest.mark.needs("keras"),
    pytest.mark.skipif(
        os.environ.get("KERAS_BACKEND") != "tensorflow", reason="tf.distribute is TensorFlow's"
    ),
]
CHECKS = Path(__file__).parents[2] / "ranks" / "keras_replicas.py"
replicas = ranks_of(CHECKS, world=1, timeout=240)


@pytest.mark.parametrize("name", names_in(CHECKS))
def test_replicas_of_keras(replicas: Ranks, name: str) -> None:
    replicas.assert_passed(name)
