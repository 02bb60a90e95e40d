"""How a value in hand is a part of an array: which of its axes are split, and over what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ..graph import ops
from ..graph.ir.graph import Graph, Node, make_node
from ..graph.ir.types import SCALAR_SHAPE
from ..graph.ops.results import PER_ELEMENT
from ..graph.support.data import dataclass
from ..graph.support.shards import EVERY, Names


@dataclass(frozen=True, slots=True)
class Part:
    """How a value is a part of an array.

    Attributes:
        rank: its number of axes; None: not known.
        split: the axes that are split, with what they are split over.
        ones: the axes that have one element, which meets every part alike.
    """

    rank: int | None
    split: Mapping[int, Names] = field(default_factory=dict)
    ones: frozenset[int] = frozenset()

    def axes(self, axis: Any) -> tuple[int, ...]:
        """Return axes, None for all, counted from 0."""
        assert self.rank is not None
        if axis is None:
            return tuple(range(self.rank))
        given = axis if isinstance(axis, tuple) else (axis,)
        return tuple(i % self.rank for i in given) if self.rank else ()

    def over(self, axis: Any) -> Names | None:
        """Return what these axes are split over; None: nothing."""
        names = [self.split[i] for i in self.axes(axis) if i in self.split]
        if not names:
            return None
        return EVERY if EVERY in names else tuple(name for each in names for name in each)


def whole(node: Node, own: list[Part]) -> Part:
    """Return the shape of a value that no shard has a part of, as far as it is known."""
    if node.type.kind != "tensor" or node.type.shape == SCALAR_SHAPE:
        return Part(0)
    if node.op is ops.ARRAY:
        shape = node.attr("value").shape
        return Part(len(shape), ones=frozenset(i for i, n in enumerate(shape) if n == 1))
    if node.op.result in PER_ELEMENT and all(part.rank is not None for part in own):
        return broadcast(own)
    if "keepdims" in dict(node.attrs) and own[0].rank is not None:
        return reduced(own[0], node)
    return Part(None)


def broadcast(parts: list[Part]) -> Part:
    """Return how what is made of values element by element is split."""
    rank = max((part.rank or 0 for part in parts), default=0)
    split: dict[int, Names] = {}
    ones = set(range(rank))
    for part in parts:
        lead = rank - (part.rank or 0)
        for i, names in part.split.items():
            split.setdefault(i + lead, names)
        ones -= {i + lead for i in range(part.rank or 0) if i not in part.ones}
    return Part(rank, split, frozenset(ones))


def reduced(part: Part, node: Node) -> Part:
    """Return how a reduction's result is split."""
    assert part.rank is not None
    gone = set(part.axes(node.attr("axis")))
    if node.attr("keepdims"):
        split = {i: names for i, names in part.split.items() if i not in gone}
        return Part(part.rank, split, part.ones | gone)
    return kept_axes(part, [i for i in range(part.rank) if i not in gone])


def kept_axes(part: Part, order: list[int]) -> Part:
    """Return how a value is split of which these axes are left, in this order."""
    split = {order.index(i): names for i, names in part.split.items() if i in order}
    return Part(len(order), split, frozenset(order.index(i) for i in part.ones if i in order))


def rebuilt(node: Node, done: Mapping[Node, Node]) -> Node:
    """Return a node with what stands for its operands now."""
    operands = tuple(done[operand] for operand in node.operands)
    if operands == node.operands:
        return node
    attrs = dict(node.attrs)
    return make_node(node.op, operands, attrs, node.op.result(*(o.type for o in operands), **attrs))


def places_of(graph: Graph, done: Mapping[Node, Node]) -> dict[Node, Any]:
    """Return where the nodes were written, those that stand for others now included."""
    return dict(graph.locations) | {
        done[node]: where for node, where in graph.locations.items() if node in done
    }
