"""Axes of symbolic values, checked against the rank if it is known; shapes that a capture knows."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

from ..ir import questions
from ..ir.op import INPUT_SHAPE
from .trace import NeedsConcrete, Value

Tensor = Any
Axis = int | tuple[int, ...] | list[int] | None


def axes_of(x: Tensor, axis: Axis) -> int | tuple[int, ...] | None:
    """Return the attribute for an axis or axes, checked if this capture knows the rank."""
    if axis is None:
        return None
    if isinstance(axis, tuple | list):
        return tuple(one_axis(x, i) for i in axis)
    return one_axis(x, axis)


def one_axis(x: Tensor, axis: Any) -> int:
    """Return one axis as an int.

    Raises:
        TypeError: it is no integer.
        TraceError: x is symbolic, of a rank known here, and has no such axis.
    """
    axis = index(axis)
    if isinstance(x, Value) and x.node.type.shape == INPUT_SHAPE:
        rank = x.trace.shapes.rank(x.node)
        if rank and not -rank <= axis < rank:
            raise x.trace.error(
                f"names axis {axis} of a tensor that has {rank}: {-rank} to {rank - 1}"
            )
    return axis


def known_shape(x: Any) -> tuple[int, ...] | None:
    """Return the shape of a symbolic value if this capture has fixed it."""
    if not isinstance(x, Value) or x.node.type.kind != "tensor":
        return None
    return x.trace.shapes.known(x.node)


def ask_for(what: str, values: Iterable[Any]) -> None:
    """Require "ndim" or "shape" of all values; the unknown ones are asked for together."""
    count, facts = questions.count(), dict[str, None]()
    for value in values:
        try:
            getattr(value, what)
        except NeedsConcrete as need:
            facts.update(dict.fromkeys(need.facts))
    questions.forget(count)
    if facts:
        raise NeedsConcrete(*facts)
