"""MULTIGRAD_CHECK_RANKS on the workers and the replicas of `tf.distribute`;
`test_agreement_torch.py` has more.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ..harness.distributed.disagreement import (
    BY_RANK,
    KILLED,
    LATE,
    assert_names_the_killed,
    assert_said,
    seconds,
)
from ..harness.distributed.ranks import Ranks, names_in, ranks_of

pytestmark = pytest.mark.needs("tensorflow")
CHECKS = Path(__file__).parents[1] / "ranks" / "agreement" / "agreement_tensorflow.py"
DIFFERENT = r"GradientError: .*the ranks apply different rules .*"
# What both ranks raise.
EXPECTED = {
    "ranks_that_agree": r"$",
    "different_rules_of_traced_replicas": DIFFERENT
    + r"rank 0: use triangular\(width=1.0\) .*rank 1: use rectangular",
    "different_params_in_eager_replicas": DIFFERENT
    + r"rank 0: use triangular\(width=1.0\).*rank 1: use triangular\(width=2.0\)",
    "different_rules_for_gradients": DIFFERENT
    + r"rank 0: gradients under clip_norm.*rank 1: gradients under centralize",
    "a_rank_that_comes_too_late": LATE,
    **BY_RANK,
}


ranks = ranks_of(CHECKS, world=2, timeout=90, env=seconds, grace=None)


def test_every_check_is_expected() -> None:
    assert {*EXPECTED, KILLED} == set(names_in(CHECKS))


@pytest.mark.parametrize("name", EXPECTED)
def test_ranks_that_do_not_do_the_same_raise_and_name_the_rank(ranks: Ranks, name: str) -> None:
    assert_said(ranks, name, EXPECTED[name])


@pytest.mark.parametrize("name", [KILLED])
def test_a_killed_rank_is_an_error_that_names_it(ranks: Ranks, name: str) -> None:
    assert_names_the_killed(ranks)


def test_replicas_of_one_process_that_do_not_do_the_same_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = """
        import tensorflow as tf

        import multigrad as xg

        act = xg.activation("Tanh")
        cpu = tf.config.list_physical_devices("CPU")[0]
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

        def step(width, more):
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            number = number if isinstance(number, int) else int(tf.get_static_value(number))
            with xg.use("triangular", params={"width": width + more * number}):
                return act(tf.constant([0.25, 0.5]))

        for _ in range(2):
            strategy.run(step, args=(1.0, 0.0))
            tf.function(lambda: strategy.run(step, args=(2.0, 0.0)))()
        for run in (strategy.run, tf.function(strategy.run)):
            try:
                run(step, (1.0, 2.0))
                raise SystemExit("replicas under different rules were not told apart")
            except xg.GradientError as error:
                assert "rank 0: use triangular(width=1.0)" in str(error), error
                assert "rank 1: use triangular(width=3.0)" in str(error), error
    """
    monkeypatch.setenv("MULTIGRAD_CHECK_RANKS", "1")
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)
