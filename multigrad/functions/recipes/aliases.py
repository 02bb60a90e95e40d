"""Which outputs lie in the memory of arguments: what is equal to one is not told by values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...graph import ops
from ...lowering.lower import PASSING
from ...trace.trace import Value


def find_aliases(
    values: Sequence[Value], arguments: Sequence[Any]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the positions of outputs that are views of an argument for certain, and of those that
    are in no argument's memory, as `x.clone()`: what is equal to an argument is told by it.
    """
    viewed, copied = [], []
    for i, value in enumerate(values):
        shown = [value]
        while (base := shown[-1].base) is not None:
            shown.append(base)
        if not any(shown[-1] is each for each in arguments):
            copied += [i] if shown[-1].node.op not in PASSING else []
        elif len(shown) > 1 and all(is_named_anew(each) for each in shown[:-1]):
            viewed.append(i)
    return tuple(viewed), tuple(copied)


def is_named_anew(value: Value) -> bool:
    """Return whether a symbol is a view for certain, with a gradient: a detached one is none that
    torch knows of.
    """
    return value.is_certain and value.node.op is not ops.STOP_GRADIENT
