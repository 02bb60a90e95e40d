"""MULTIGRAD_CHECK_RANKS: where ranks do not apply the same rules, each of them raises, and names
the rank.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import multigrad as xg
from multigrad.backend import Group
from multigrad.engine.trace.ranks import RankReport, describe_end, exchange, read_setting

from ..harness.distributed.disagreement import (
    BY_RANK,
    DIFFERENT,
    KILLED,
    assert_names_the_killed,
    assert_said,
    seconds,
)
from ..harness.distributed.ranks import Ranks, names_in, ranks_of, run_ranks
from ..support.threads import on_threads

pytestmark = pytest.mark.needs("torch")
CHECKS = Path(__file__).parents[1] / "ranks" / "agreement" / "agreement_torch.py"
# What all ranks raise.
EXPECTED = {
    "ranks_that_agree": r"$",
    "different_counts_where_rules_alone_are_compared": r"$",
    "different_rules": DIFFERENT + r"rank 0: use triangular\(width=1.0\) <code \w+> "
    r"\(at agreement_torch.py:\d+\); rank 1: use rectangular\(a=-0.5, b=0.5\) <code \w+> \(at ",
    "draws_for_parts_of_other_lengths": DIFFERENT + r"rank 0: draws for a part of shape \(2, 6\).*"
    r"rank 1: draws for a part of shape \(1, 6\)",
    "different_params": DIFFERENT + r"rank 0: use triangular\(width=1.0\) .*"
    r"rank 1: use triangular\(width=2.0\)",
    "different_params_under_fully_shard": DIFFERENT
    + r"rank 0: use clip_norm\(.*max_norm=1.0\) <code "
    r"\w+> for params.*rank 1: use clip_norm\(.*max_norm=2.0\) <code \w+> for params",
    "different_keys": DIFFERENT + r"rank 0: .* with key \(0, 3\) .*rank 1: .* with key \(0, 4\)",
    "different_scopes": DIFFERENT + r"rank 0: .* for params.*rank 1: .* for activations",
    "no_rule_on_one_rank": DIFFERENT + r"rank 0: use triangular.*"
    r"rank 1: Heaviside under no rule",
    "different_rules_of_a_layer": DIFFERENT + r"rank 0: Heaviside under triangular\(width=1.0\).*"
    r"rank 1: Heaviside under rectangular",
    "different_code_by_one_name": DIFFERENT + r"rank 0: use of_this_rank <code \w+>.*"
    r"rank 1: use of_this_rank <code \w+>",
    "different_counts": DIFFERENT + r"rank 0: Heaviside under triangular\(width=1.0\) <code \w+> "
    r"\(at .*rank 1: Heaviside under triangular\(width=1.0\) <code \w+> 2 times",
    "different_order": DIFFERENT + r"rank 0: ReLU under .*; rank 1: Sign under ",
    "different_rules_for_gradients": DIFFERENT + r"rank 0: gradients under clip_norm.*"
    r"rank 1: gradients under centralize",
    "a_rank_that_comes_too_late": r"GradientError: rank 1 did not come to comparison \d+ .* within "
    r"2 s.*applies no rule",
    **BY_RANK,
}
ranks = ranks_of(CHECKS, world=2, timeout=60, env=seconds, grace=None)


def test_every_check_is_expected() -> None:
    assert {*EXPECTED, KILLED} == set(names_in(CHECKS))


@pytest.mark.parametrize("name", EXPECTED)
def test_ranks_that_do_not_do_the_same_all_raise_what_each_does(ranks: Ranks, name: str) -> None:
    assert_said(ranks, name, EXPECTED[name])


@pytest.mark.parametrize("name", [KILLED])
def test_a_killed_rank_is_an_error_that_names_it_within_the_time_out(
    ranks: Ranks, name: str
) -> None:
    assert_names_the_killed(ranks)


@pytest.fixture(scope="module")
def unchecked() -> Ranks:
    return run_ranks([CHECKS.with_name("failure_torch.py")], world=2, timeout=40)


def test_without_the_check_errors_of_ours_alone_name_the_rank(unchecked: Ranks) -> None:
    told = unchecked.values("errors_that_leave_a_use")
    assert told == [[[], [f"[rank {rank}] of 2"]] for rank in range(2)]


def test_without_the_check_a_rank_that_fails_says_which_and_the_others_wait_for_the_time_out(
    unchecked: Ranks,
) -> None:
    first, second = unchecked.values("a_hook_that_raises_within_backward")
    assert second[:2] == ["ValueError", "no gradient on this rank"]
    assert second[2] == "[rank 1] of 2: rule 'failing' failed"
    assert first[0] == "RuntimeError" and 2.0 < float(first[-1]) < 10.0


@pytest.mark.parametrize("word", ["2", "yes"])
def test_a_word_that_says_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("MULTIGRAD_CHECK_RANKS", word)
    with pytest.raises(xg.errors.RuleValueError, match=f"is 0, 1 or rules, got '{word}'"):
        read_setting()


@pytest.mark.parametrize("seconds", ["0", "0.0", "-1", "ten", "nan", "."])
def test_seconds_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch, seconds: str) -> None:
    monkeypatch.setenv("MULTIGRAD_CHECK_RANKS_TIMEOUT", seconds)
    with pytest.raises(xg.errors.RuleValueError, match=f"seconds above 0, got '{seconds}'"):
        read_setting()


@pytest.mark.parametrize("seconds", ["2", "0.5", ".5", "1800."])
def test_seconds_above_zero_are_taken(monkeypatch: pytest.MonkeyPatch, seconds: str) -> None:
    monkeypatch.setenv("MULTIGRAD_CHECK_RANKS", "rules")
    monkeypatch.setenv("MULTIGRAD_CHECK_RANKS_TIMEOUT", seconds)
    assert read_setting() == "rules"


def exchange_all(said: dict[int, Any], *, late: int = -1, seconds: float = 0.3) -> dict[int, str]:
    """Return what each of three ranks finds wrong, of which one may come after the time-out."""
    store: dict[str, str] = {}
    found: dict[int, str] = {}

    def run(rank: int) -> None:
        if rank == late:
            time.sleep(0.6)
        group = Group(
            rank=rank,
            size=3,
            put=store.__setitem__,
            look=store.get,
            drop=store.__delitem__,
            timeout=float,
        )
        entry = said[rank]
        if isinstance(entry, Exception):
            entry = describe_end(group, 0, entry)
        found[rank] = exchange(group, 0, entry, seconds)

    on_threads(run, *said)
    return found


def step(*lines: str) -> RankReport:
    return RankReport([*lines, "the end of a use"], "train.py:31")


def test_ranks_that_say_the_same_are_named_together() -> None:
    found = exchange_all(
        {0: step("use a", "b"), 1: step("use a", "c"), 2: step("use a", "b")}, seconds=60.0
    )
    told = "rank 0, 2: b (at train.py:31); rank 1: c (at train.py:31)"
    at = "comparison 0 of MULTIGRAD_CHECK_RANKS"
    assert set(found.values()) == {f"the ranks apply different rules ({at}): {told}"}


def test_a_rank_that_does_less_is_told_apart_by_its_end() -> None:
    said = {0: step("use a", "b"), 1: step("use a"), 2: step("use a", "b")}
    found = exchange_all(said, seconds=60)
    assert "rank 0, 2: b (at train.py:31); rank 1: the end of a use" in found[1]


def test_a_late_rank_raises_what_the_others_raise() -> None:
    found = exchange_all(dict.fromkeys(range(3), step("use a")), late=1)
    told = "rank 1 did not come to comparison 0 of MULTIGRAD_CHECK_RANKS within 0.3 s"
    assert all(found[rank].startswith(told) for rank in range(3)), found


def test_nobody_waits_for_a_rank_that_has_failed() -> None:
    began = time.monotonic()
    found = exchange_all({0: step("use a"), 2: ValueError("no gradient")}, seconds=60.0)
    assert time.monotonic() - began < 30
    assert found[0] == (
        "rank 2 failed: ValueError: no gradient, before comparison 0 of MULTIGRAD_CHECK_RANKS; "
        "no word yet of rank 1"
    )
