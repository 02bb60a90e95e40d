"""How much is proven: the variable MULTIGRAD_PROVE."""

from __future__ import annotations

import os

from ....errors import RuleValueError

VARIABLE = "MULTIGRAD_PROVE"
OFF, ON, ALL = "0", "1", "all"


def how_much() -> str:
    """Return "0" (nothing is proven), "1" (captures, the default) or "all" (each call, too).

    Raises:
        RuleValueError: the variable says something else.
    """
    # Read each time, as it may change while a program runs.
    word = os.environ.get(VARIABLE, "") or ON
    if word not in (OFF, ON, ALL):
        raise RuleValueError(f"{VARIABLE} is 0, 1 or all, got {word!r}")
    return word


def is_asked(prove: bool) -> bool:
    """Return whether to prove what its author does (`prove`) or does not want proven."""
    word = how_much()
    return word == ALL or (prove and word == ON)
