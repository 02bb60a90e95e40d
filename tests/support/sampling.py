"""A share of what takes long, drawn by a fixed seed: the same in each run.

MULTIGRAD_TABLES=all takes the whole, as `tox -e tables` does each week.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import TypeVar

Case = TypeVar("Case")
WHOLE = os.environ.get("MULTIGRAD_TABLES") == "all"


def sample(cases: Iterable[Case], share: float) -> list[Case]:
    """Draw a share of cases, at least one, in their order."""
    every = list(cases)
    count = len(every) if WHOLE else max(1, round(share * len(every)))
    return [every[at] for at in sorted(random.Random(0).sample(range(len(every)), count))]
