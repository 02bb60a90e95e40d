"""A share of what takes long, drawn by a fixed seed: the same in each run.

MULTIGRAD_TABLES=all takes the whole, as `tox -e tables` does each week.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Callable, Iterable
from typing import TypeVar

Case = TypeVar("Case")
IN_TURN = ("torch", "jax", "tensorflow")
WHOLE = os.environ.get("MULTIGRAD_TABLES") == "all"


def sample(cases: Iterable[Case], share: float) -> list[Case]:
    """Draw a share of cases, at least one, in their order."""
    every = list(cases)
    return draw(every, len(every) if WHOLE else max(1, round(share * len(every))))


def draw(cases: list[Case], count: int) -> list[Case]:
    """Draw so many of the cases, in their order."""
    return [cases[at] for at in sorted(random.Random(0).sample(range(len(cases)), count))]


def turn_of(framework: str, cases: list[Case], name: Callable[[Case], str]) -> list[Case]:
    """Return the cases that run on a framework, one of three for each case; never none of them."""
    own = IN_TURN.index(framework)

    def turn(case: Case) -> int:
        return (zlib.crc32(name(case).replace(framework, "").encode()) - own) % len(IN_TURN)

    return [case for case in cases if turn(case) == 0] or [min(cases, key=turn)]
