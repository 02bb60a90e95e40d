"""What MULTIGRAD_CHECK_RANKS says where ranks differ; they run `agreement.py`."""

from __future__ import annotations

import re

from .ranks import Ranks

DIFFERENT = r"GradientError: the ranks apply different rules .*"
LATE = r"GradientError: rank 1 did not come to comparison .* 2 s"
# What rank 0 raises, and rank 1; one pattern is of both.
BY_RANK: dict[str, str | list[str]] = {
    "a_rule_that_raises_on_one_rank": [
        r"GradientError: rank 1 failed: ValueError: no gradient on this rank, before comparison",
        r"ValueError: no gradient on this rank\n\[rank 1\] of 2: rule 'failing' failed",
    ],
}
KILLED = "a_rank_that_is_killed"


def seconds(rank: int) -> dict[str, str]:
    """Return the environment of a rank: the comparison waits for two seconds."""
    return {"MULTIGRAD_CHECK_RANKS": "1", "MULTIGRAD_CHECK_RANKS_TIMEOUT": "2"}


def assert_said(ranks: Ranks, name: str, expected: str | list[str]) -> None:
    """Fail where a rank did not raise what begins with its pattern."""
    patterns = [expected] * 2 if isinstance(expected, str) else expected
    for text, pattern in zip(ranks.values(name), patterns, strict=True):
        assert re.match(pattern, text, re.DOTALL), text


def assert_names_the_killed(ranks: Ranks) -> None:
    report = ranks.each[0].reports[KILLED]
    assert re.search(r"rank 1 did not come|no word yet of rank 1", report["value"]), report
    assert report["seconds"] < 20
    assert ranks.each[1].returncode == -9
