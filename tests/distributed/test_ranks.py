"""The harness of tests on several processes: what fails, ends or hangs there is a failure here."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..harness.distributed.ranks import Ranks, names_in, ranks_of, run_ranks, start_ranks

CHECKS = Path(__file__).parents[1] / "ranks" / "of_the_harness.py"


def more(rank: int) -> dict[str, str]:
    return {"RANKS_MORE": f"more-{rank}"}


ranks = ranks_of(CHECKS, world=2, timeout=30, env=more)


@pytest.mark.parametrize("name", names_in(CHECKS)[:4])
def test_each_rank_reports_each_check_with_its_arguments(ranks: Ranks, name: str) -> None:
    kind, number = name.removesuffix("]").split("[")[1].split("-")
    assert ranks.values(name) == [[kind, int(number), i, "2", f"more-{i}"] for i in range(2)]


def test_ranks_that_fail_end_or_hang_fail_the_check_and_say_which() -> None:
    last = names_in(CHECKS)[4:]
    assert last == ["fails_on_the_last_rank", "ends_the_last_rank", "hangs"]
    found = run_ranks([CHECKS], last, world=2, timeout=30, env=more, grace=1.0)
    with pytest.raises(AssertionError, match=r"^--- rank 1: (.|\n)*only the first rank passes"):
        found.assert_passed("fails_on_the_last_rank")
    with pytest.raises(AssertionError, match=r"^--- rank 1: ended after \d+ s with status 3"):
        found.assert_passed("ends_the_last_rank")
    with pytest.raises(AssertionError, match=r"rank 0: was ended (.|\n)*report hangs"):
        found.assert_passed("hangs")
    assert all(rank.seconds < 20 for rank in found.each)


def test_a_hang_is_ended_at_the_time_out_with_the_stack_in_the_output() -> None:
    found = run_ranks([CHECKS], ["hangs"], world=1, timeout=3, env=more)
    with pytest.raises(AssertionError, match=r"was ended(.|\n)*in hangs"):
        found.assert_passed("hangs")


def test_a_check_is_known_while_the_next_runs() -> None:
    names = [names_in(CHECKS)[0], "hangs"]
    with start_ranks([CHECKS], names, 1, 30.0, more, None) as running:
        running.assert_passed(names[0])
        assert running.collect()[0].returncode is None
