"""Whether the parts of a Function run as one kernel each, as users say it, and what is known of
kernels before there are any.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

from ...errors import RuleTypeError, RuleValueError

Fused: TypeAlias = Literal["auto"] | bool
VARIABLE = "MULTIGRAD_FUSED"
FULL, ROW, COLUMN, ONE = "full", "row", "column", "one"  # of what tensors have an element
THREAD = "multigrad kernels"  # in which they are made while plain code runs
SETTINGS: dict[str, Fused] = {"": "auto", "auto": "auto", "on": True, "off": False}


class Layout(NamedTuple):
    """How a tensor lies to the elements: `kind`, and `rank`: of one number or a column, its axes at
    most; of one number for each row, how many axes are a row.
    """

    kind: str = FULL
    rank: int = 1 << 10

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of such a tensor for elements of this shape."""
        if self.kind == FULL:
            return shape
        if self.kind == ROW:
            return (*shape[: -self.rank], *[1 for _ in shape[-self.rank :]])
        ones = (1,) * min(self.rank, len(shape))
        return (*ones[1:], *shape[-1:]) if self.kind == COLUMN else ones


WHOLE = Layout()


class CannotFuseError(Exception):
    """Why there is no kernel, in a few words."""


def read_fused(fused: Any) -> Fused:
    """Return an option as it was given.

    Raises:
        RuleTypeError: it is none.
    """
    if fused == "auto" or isinstance(fused, bool):
        return fused
    raise RuleTypeError(f'fused is "auto", True or False, got {fused!r}')


def in_process(fused: Fused) -> Fused:
    """Return what "auto" means in this process.

    Raises:
        RuleValueError: the environment's variable says something else.
    """
    setting = os.environ.get(VARIABLE, "")
    if setting not in SETTINGS:
        raise RuleValueError(f"{VARIABLE} is on, off or auto, got {setting!r}")
    return SETTINGS[setting] if fused == "auto" else fused


def agreed(choices: Iterable[Any]) -> Any:
    """Return what those that choose agree on; "auto" where none does, or they differ."""
    chosen = {choice for choice in choices if choice != "auto"}
    return chosen.pop() if len(chosen) == 1 else "auto"
