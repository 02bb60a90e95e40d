"""What is said where ranks do not agree: which rank has what in force."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from .described import without_codes

MOST_SHOWN = 400  # characters of a rank's words in a message
# Where user code is not: for the line of a `use`.
OWN = (
    "multigrad", "multigrad_torch", "multigrad_jax", "multigrad_tensorflow", "torch", "jax",
    "tensorflow", "keras", "contextlib", "threading", "optax", "optree",
)  # fmt: skip
Words = dict[str, Any]


def judge(words: Mapping[int, Words], size: int, number: int, seconds: float | None) -> str:
    """Return what is wrong with what the ranks have said; "": nothing.

    Args:
        size: how many ranks there are.
        number: of the comparison.
        seconds: how long they were waited for; None: those that are not there may yet come.
    """
    ended = {rank: said["end"] for rank, said in words.items() if "end" in said}
    missing = [rank for rank in range(size) if rank not in words]
    lines = {rank: said["lines"] for rank, said in words.items() if "lines" in said}
    at = f"comparison {number} of MULTIGRAD_CHECK_RANKS"
    here = "" if not lines else f". The others: {told(lines, words)}"
    if ended:
        how = "; ".join(f"rank {rank} {how}" for rank, how in ended.items())
        return f"{how}, before {at}{here}"
    if missing and seconds is not None:
        return (
            f"{named(missing)} did not come to {at} within {seconds:g} s{here}. A rank that "
            "does not come applies no rule, hangs in a collective, or was killed"
        )
    if all(each == lines[min(lines)] for each in lines.values()):
        return ""
    return f"the ranks apply different rules ({at}): {told(lines, words)}"


def told(lines: Mapping[int, list[str]], words: Mapping[int, Words]) -> str:
    """Return in what the words of ranks differ, those of equal words together."""
    groups: dict[str, list[int]] = {}
    for rank, each in lines.items():
        groups.setdefault("\n".join(each), []).append(rank)
    shown = {rank: without_codes("\n".join(each)) for rank, each in lines.items()}
    if len(set(shown.values())) < len(groups):  # the same but for the code
        shown = {rank: "\n".join(each) for rank, each in lines.items()}
    split = {rank: text.split("\n") for rank, text in shown.items()}
    common = set.intersection(*map(set, split.values()))
    if len(groups) == 1 or any(set(each) <= common for each in split.values()):
        common = set()  # they differ in their order, or by what others do besides
    found = []
    for ranks in groups.values():
        own = split[ranks[0]]
        text = "; ".join(each for each in own if each not in common)
        text = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
        found.append(f"{named(ranks)}: {text} (at {words[ranks[0]]['place']})")
    return "; ".join(found)


def named(ranks: list[int]) -> str:
    """Return ranks in words."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def times(count: int) -> str:
    """Return how often, if more than once."""
    return f" {count} times" if count > 1 else ""


def first_line(error: BaseException) -> str:
    """Return an error in a line."""
    text = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {text[:MOST_SHOWN]}"


def place() -> str:
    """Return the line of the user's code that runs now."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in OWN:
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"
