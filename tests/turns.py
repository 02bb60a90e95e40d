"""Which cases run before a merge, where `tox run -e tables` runs all of them each week.

A test function that takes less than LEAST runs on every framework, each of its cases on one of
three; one that takes more runs on one framework alone, and has MOST there: of more cases than that
suffices for some are drawn, always the same, and one case that takes more than twice as much is
left to the weekly run, unless it is marked `always`. The numbers of single ops are not taken in
turns.

`seconds.txt` says what a case takes, in the mean. Runs of the tests for which MULTIGRAD_SECONDS
names a folder write there what their cases took; `python -m tests.turns FOLDER` then writes the
table, in which the rows of other functions stay.
"""

from __future__ import annotations

import ast
import functools
import os
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from .harness import once
from .support import sampling

TABLE = Path(__file__).with_name("seconds.txt")
MOST = 0.7  # seconds of a function in an environment, rounded to whole cases
LEAST = 0.3  # seconds of a function that the table tells of
SPENT: Counter[str] = Counter()  # by each case, in this process


def now_and_later(
    items: list[pytest.Item], environment: once.Environment
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the items that run before a merge, and those that are left."""
    groups: dict[tuple[str, str | None], list[pytest.Item]] = defaultdict(list)
    for item in items:
        own = once.framework_in_turn(item, environment)
        groups[item.nodeid.partition("[")[0], own].append(item)
    now: set[pytest.Item] = set()
    for (function, own), cases in groups.items():
        takes_turns = "conformance" not in cases[0].path.parts
        if own is not None and takes_turns:
            cases = sampling.turn_of(own, cases, lambda case: case.nodeid)
        now |= {*affordable(function, environment.name, cases, takes_turns)}
    return [i for i in items if i in now], [i for i in items if i not in now]


def affordable(
    function: str, environment: str, cases: list[pytest.Item], takes_turns: bool
) -> list[pytest.Item]:
    """Return as many cases of a function as its seconds suffice for, where it is its turn."""
    seconds = read().get((function, environment))
    if seconds is None:
        return cases
    always = [case for case in cases if case.get_closest_marker("always")]
    head, dash, _ = environment.rpartition("-")
    family = [f"{head}{dash}{name}" for name in sampling.IN_TURN]
    rivals = [each for each in family if (function, each) in read()]
    turn = rivals[zlib.crc32(function.encode()) % len(rivals)] if rivals else environment
    if takes_turns and environment in rivals and turn != environment:
        return always
    others = [case for case in cases if case not in always]
    return always + sampling.draw(others, min(len(others), round(MOST / seconds)))


@functools.cache
def read() -> Mapping[tuple[str, str], float]:
    """Return the seconds of a case of each test function, in each environment."""
    found = {}
    for line in TABLE.read_text().splitlines():
        function, *pairs = line.split()
        for environment, seconds in (pair.split("=") for pair in pairs):
            found[function, environment] = float(seconds)
    return found


def keep(folder: Path, environment: str) -> None:
    """Write what each case took in this process's run of the tests."""
    lines = [f"{environment} {seconds} {case!r}" for case, seconds in SPENT.items()]
    (folder / f"{environment}-{os.getpid()}.txt").write_text("\n".join(lines))


def main(folder: str) -> None:
    """Write the table anew, from whole runs, with what they tell in place of what was there."""
    spent: dict[tuple[str, str], list[float]] = defaultdict(list)
    for file in Path(folder).glob("*.txt"):
        for line in file.read_text().splitlines():
            environment, seconds, case = line.split(" ", 2)
            spent[ast.literal_eval(case).partition("[")[0], environment].append(float(seconds))
    means = {row: sum(each) / len(each) for row, each in spent.items() if sum(each) > LEAST}
    kept = {row: seconds for row, seconds in read().items() if row not in spent}
    lines: dict[str, str] = defaultdict(str)
    for (function, environment), seconds in sorted({**kept, **means}.items()):
        lines[function] += f" {environment}={seconds:.2g}"
    TABLE.write_text("".join(f"{function}{pairs}\n" for function, pairs in lines.items()))


if __name__ == "__main__":
    main(*sys.argv[1:])
