"""Numbers that code reads and that keep changing, as inputs of a capture that is for all values."""

from __future__ import annotations

from typing import Any, NamedTuple

from ....core.ir.op import FLOAT_SCALAR
from ....core.trace.lookups import READ
from .paths import STARTS, Find, cell_of, global_of
from .read_checks import write_find
from .reads import LOOSE


def numbers_moving() -> list[tuple[str, Find]]:
    """Return the names of the inputs for numbers, and functions that find them."""
    rows = [
        (reads, path) for reads, paths in LOOSE.get().items() for path in sorted(paths, key=repr)
    ]
    return [(f"{READ}{i}", write_find(reads.anchor, path)) for i, (reads, path) in enumerate(rows)]


class Moved(NamedTuple):
    """What stands for moving numbers in a capture.

    Attributes:
        symbols: by the id of what holds a number, and its place there.
        leading: the ids of all values on the way to one.
        inputs: the symbols, in order.
    """

    symbols: dict[tuple[int, Any], Any]
    leading: set[int]
    inputs: list[Any]


def moved(trace: Any) -> Moved:
    """Return symbols for the numbers that move, as a capture begins."""
    result = Moved({}, set(), [])
    names = iter(name for name, _ in numbers_moving())
    for reads, paths in LOOSE.get().items():
        for path in sorted(paths, key=repr):
            starts = [n for n, (kind, _) in enumerate(path) if kind in STARTS]
            # A function is copied, whatever led to it; what it refers to is replaced in the copy.
            way = [reads.at(path[:n]) for n in range(starts[-1] + 1 if starts else 0, len(path))]
            owner, (kind, place) = reads.at(path[:-1]), path[-1]
            if kind == global_of.__name__:
                owner = owner.__globals__
            elif kind == cell_of.__name__:
                owner, place = owner.__closure__[place], None
            result.leading.update(map(id, way))
            symbol = trace.input(next(names), FLOAT_SCALAR)
            result.symbols.setdefault((id(owner), place), symbol)
            result.inputs.append(symbol)
    return result
