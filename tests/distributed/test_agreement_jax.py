"""MULTIGRAD_CHECK_RANKS on processes of `jax.distributed`; `test_agreement_torch.py` has more."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..harness.distributed.disagreement import (
    BY_RANK,
    DIFFERENT,
    KILLED,
    LATE,
    assert_names_the_killed,
    assert_said,
    seconds,
)
from ..harness.distributed.ranks import Ranks, names_in, ranks_of

pytestmark = pytest.mark.needs("jax")
CHECKS = Path(__file__).parents[1] / "ranks" / "agreement" / "agreement_jax.py"
# What both ranks raise.
EXPECTED = {
    "ranks_that_agree": r"$",
    "different_rules_around_compiled_code": DIFFERENT
    + r"rank 0: use triangular\(width=1.0\) .*rank 1: use rectangular",
    "different_rules_within_compiled_code": DIFFERENT + r"rank 0: .*use triangular\(width=1.0\) .*"
    r"rank 1: .*use triangular\(width=2.0\)",
    "different_rules_of_eager_layers": DIFFERENT
    + r"rank 0: ReLU under triangular.*rank 1: ReLU under rectangular",
    "different_rules_for_gradients": DIFFERENT
    + r"rank 0: gradients under clip_norm\(.*max_norm=1.0\).*"
    r"rank 1: gradients under clip_norm\(.*max_norm=2.0\)",
    "a_rank_that_comes_too_late": LATE,
    **BY_RANK,
}


def on_the_cpu(rank: int) -> dict[str, str]:
    return {**seconds(rank), "JAX_PLATFORMS": "cpu"}


ranks = ranks_of(CHECKS, world=2, timeout=60, env=on_the_cpu, grace=None)


def test_every_check_is_expected() -> None:
    assert {*EXPECTED, KILLED} == set(names_in(CHECKS))


@pytest.mark.parametrize("name", EXPECTED)
def test_ranks_that_do_not_do_the_same_raise_and_name_the_rank(ranks: Ranks, name: str) -> None:
    assert_said(ranks, name, EXPECTED[name])


@pytest.mark.parametrize("name", [KILLED])
def test_a_killed_rank_is_an_error_that_names_it(ranks: Ranks, name: str) -> None:
    assert_names_the_killed(ranks)
