"""Facts about shapes in a capture: the inputs' shapes from which a value's shape follows; and the
order in which a graph draws.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...errors import TraceError
from .. import ops
from ..ir.graph import Node
from ..ir.op import BOOL, FLOATS, INPUT_SHAPE, SCALAR_SHAPE, WHOLE, T
from ..ir.questions import note

Shape = tuple[int, ...]
# Facts that do not distinguish calls: code is shown the device of its input; equal tensors as
# different ones; what it makes from numbers alone as symbols; it calls NumPy's functions on numbers
# alone; or on tensors too.
IDENTITY, BUFFERS = "identity", "buffers"
ON_NUMBERS, ON_TENSORS = "on numbers", "on tensors"
GIVEN = ("device", IDENTITY, BUFFERS, ON_NUMBERS, ON_TENSORS)
SHARDS = "shards"  # how many there are: no capture knows it, as a graph is one for any number
LIBRARY = "library"  # of a call's tensors, where the code mentions none
RESIZED_BY_SHARDS = frozenset(("all_gather", "reduce_scatter", "all_to_all"))


def is_tensor_input(node: Node) -> bool:
    return node.op is ops.INPUT and node.type.kind == "tensor" and node.type.shape != SCALAR_SHAPE


def shape_fact(node: Node, what: str) -> str | None:
    """Return the fact that tells a value's "shape" or "ndim", or None if it is computed."""
    if node.type.shape == INPUT_SHAPE:
        return what
    return f"{what}:{node.attr('name')}" if is_tensor_input(node) else None


def needed_shapes(node: Node, shapes: Shapes | None = None) -> tuple[str, ...]:
    """Return the facts from which a value's shape follows; `shapes` remembers those on the way.

    Raise TraceError if it depends on how many shards there are.
    """
    facts = (shapes or Shapes({})).needed(node)
    if SHARDS in facts:
        raise note(
            TraceError(
                "the shape of what all_gather, reduce_scatter or all_to_all give is asked for, "
                "which depends on how many shards there are, and a graph is one for any number of "
                "them. Leave shapes to the run: xp.dim(x, axis), reductions and broadcasting need "
                "none; or let the function run as written, native=True"
            )
        )
    return facts


def needed_rank(node: Node) -> tuple[str, ...]:
    rank = shape_fact(node, "ndim")
    return needed_shapes(node) if rank is None else (rank,)


class Shapes:
    """Shapes of values under facts that may change; each is computed once, by its operands'."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = facts
        self._needed: dict[Node, tuple[str, ...]] = {}
        self._computed: dict[Node, Shape] = {}
        self._used: dict[str, Any] = {}  # the facts by which they were computed

    def known(self, node: Node) -> Shape | None:
        """Return the shape of a tensor; None where a fact is missing."""
        fact = shape_fact(node, "shape")
        if fact is not None:
            return self.facts.get(fact)
        if node.type.shape == SCALAR_SHAPE:
            return ()
        if not self.facts.keys() >= {*self.needed(node)}:
            return None
        return self.computed(node)

    def rank(self, node: Node) -> int | None:
        if node.type.shape == INPUT_SHAPE:  # as most have
            shape = self.facts.get("shape")
            return self.facts.get("ndim") if shape is None else len(shape)
        shape = self.known(node)
        if shape is None and {SHARDS} == {*self.needed(node)} - self.facts.keys():
            shape = self.computed(node)  # as of one shard, which has as many axes
        if shape is None:
            return self.facts.get(shape_fact(node, "ndim") or "")
        return len(shape)

    def needed(self, node: Node) -> tuple[str, ...]:
        facts_of = self._needed
        for each in _below(node, facts_of) if node not in facts_of else ():
            if is_tensor_input(each):
                facts_of[each] = (shape_fact(each, "shape") or "",)
            else:
                of_operands = dict.fromkeys([facts_of[operand] for operand in each.operands])
                if each.op.name in RESIZED_BY_SHARDS:
                    of_operands[(SHARDS,)] = None
                # Most values need what one of their operands needs: they hold the same tuple.
                facts = facts_of[each] = max(of_operands, key=len, default=())
                if len(of_operands) > 1 and not {*facts}.issuperset(itertools.chain(*of_operands)):
                    facts_of[each] = tuple(dict.fromkeys(itertools.chain(*of_operands)))
        return facts_of[node]

    def computed(self, node: Node) -> Shape:
        """Return the shape of a value whose facts are all known."""
        # A fact has changed since they were computed.
        if not self._used.items() <= self.facts.items():
            self._computed.clear()
            self._used.clear()
        shape_of = self._computed
        for each in _below(node, shape_of) if node not in shape_of else ():
            shape_of[each] = self._shape(each)
        return shape_of[node]

    def _shape(self, node: Node) -> Shape:
        if is_tensor_input(node):
            fact = shape_fact(node, "shape") or ""
            self._used[fact] = self.facts[fact]
            return tuple(self.facts[fact])
        if node.type.kind != "tensor" or node.op is ops.INPUT:
            return ()
        attrs = dict(node.attrs)
        if node.op.shape_of is not None:
            return node.op.shape_of(*[self._computed[o] for o in node.operands], **attrs)
        with np.errstate(all="ignore"):
            return np.shape(_run(node, [self._stand_in(o) for o in node.operands]))

    def _stand_in(self, node: Node) -> Any:
        if node.type.kind == "tensor":
            # A view of one element, whatever the shape.
            return np.broadcast_to(np.zeros((), _dtype(node)), self._computed[node])
        if node.op is ops.CONST:
            return node.attr("value")
        if node.type.kind == "key":
            return (0, 0)
        if node.op is ops.INPUT:
            return np.float32(1)
        return _run(node, [self._stand_in(operand) for operand in node.operands])


def _below(node: Node, known: Mapping[Node, Any]) -> Iterator[Node]:
    # By a stack, because long graphs exceed the limit of recursion.
    stack = [node]
    while stack:
        missing = [operand for operand in stack[-1].operands if operand not in known]
        if missing:
            stack.extend(reversed(missing))
        elif (ready := stack.pop()) not in known:
            yield ready


def _run(node: Node, values: list[Any]) -> Any:
    attrs = dict(node.attrs)
    # Shapes are the same for all float dtypes.
    if attrs.get("dtype") in (T, *FLOATS):
        attrs["dtype"] = np.dtype("float32")
    return node.op.numpy(*values, **attrs)


def _dtype(node: Node) -> str:
    if node.type.dtype == BOOL:
        return BOOL
    return "int32" if node.type.dtype in WHOLE else "float32"
