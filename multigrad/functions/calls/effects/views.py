"""Outputs in the memory of arguments: which are views of one, and which are copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....graph import ops
from ....lowering.cuts import PASSING
from ....trace.trace import Value


def find_aliases(
    values: Sequence[Value], arguments: Sequence[Any]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the positions of outputs that surely are views of an argument, and of copies."""
    # A copy, as `x.clone()`, is in no argument's memory, which its value alone does not tell.

    def is_view(value: Value) -> bool:  # with a gradient: torch knows of no other
        return value.is_certain and value.node.op is not ops.STOP_GRADIENT

    viewed, copied = [], []
    for i, value in enumerate(values):
        shown = [value]
        while (base := shown[-1].base) is not None:
            shown.append(base)
        if not any(shown[-1] is each for each in arguments):
            copied += [i] if shown[-1].node.op not in PASSING else []
        elif len(shown) > 1 and all(map(is_view, shown[:-1])):
            viewed.append(i)
    return tuple(viewed), tuple(copied)
