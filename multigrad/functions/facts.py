"""Facts: what a Function's own Python code looks at of its arguments, so that it is captured once for each.

"ndim" and "shape" are those of the first tensor, "shape:w" that of another, "param:c" the value of a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import TraceError
from ..ir.types import dtype_name
from .arguments import Layout
from .record import NotCaptured

Tensor = Any


def gather_facts(
    name: str, needed: frozenset[str], layout: Layout, leaves: Sequence[Any]
) -> dict[str, Any]:
    """Return facts about a call's arguments, by name: "ndim", "shape:w", "param:c", "dtype".

    Raises:
        NotCaptured: one is not known in Python.
    """
    facts: dict[str, Any] = {}
    if layout.mixes_floats:
        needed = needed | {"dtype"}
    first = first_tensor(layout)
    by_name = {leaf.name: i for i, leaf in enumerate(layout.leaves)}
    for fact in sorted(needed):
        what, _, argument = fact.partition(":")
        index = by_name.get(argument) if argument else first
        if what == "device":
            facts[fact] = True
            continue
        if index is None or layout.leaves[index].kind == "static":
            facts[fact] = None  # of another layout: there is nothing to know
            continue
        value = leaves[index]
        if what == "dtype":
            facts[fact] = layout.dtype or dtype_name(value.dtype)
        elif what == "ndim":
            facts[fact] = len(value.shape)
        elif what == "shape":
            shape = tuple(value.shape)
            if any(not isinstance(n, int) for n in shape):
                raise NotCaptured(
                    TraceError(
                        f"function {name!r} needs the shape of an argument in Python, but it is {shape} "
                        f"here. Use x.shape[i] only in arithmetic"
                    )
                )
            facts[fact] = shape
        elif isinstance(value, int | float):
            facts[fact] = value
    return facts


def watch(needed: frozenset[str], layout: Layout) -> Callable[[Sequence[Any]], Any]:
    """Return what tells the calls of a layout apart by these facts, faster than they are gathered."""
    first = first_tensor(layout)
    by_name = {leaf.name: i for i, leaf in enumerate(layout.leaves)}
    numbers, shapes = set(), set()
    for fact in needed:
        what, _, argument = fact.partition(":")
        index = by_name.get(argument) if argument else first
        if index is not None and what in ("param", "ndim", "shape"):
            (numbers if what == "param" else shapes).add(index)
    order, others = sorted(numbers), sorted(shapes)

    def look(leaves: Sequence[Any]) -> Any:
        return (*[leaves[i] for i in order], *[shape_key(leaves[i]) for i in others])

    def look_at_number(leaves: Sequence[Any]) -> Any:
        return leaves[order[0]]

    return look_at_number if len(order) == 1 and not others else look


def shape_key(x: Tensor) -> Any:
    """Return a shape as a key; None where not even the number of axes is known."""
    return None if getattr(x.shape, "rank", 0) is None else tuple(x.shape)


def first_tensor(layout: Layout) -> int | None:
    """Return the position of the tensor that facts without a name are about."""
    first = next((i for i, leaf in enumerate(layout.leaves) if leaf.is_float), None)
    if first is None:
        first = next((i for i, leaf in enumerate(layout.leaves) if leaf.kind == "tensor"), None)
    return first
