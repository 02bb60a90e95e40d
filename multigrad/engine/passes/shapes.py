"""Shapes of values in a capture: the facts from which a value's shape follows, and the shape itself
once they are known.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...core import ops
from ...core.ir.graph import Node
from ...core.ir.op import BOOL, FLOATS, WHOLE, T
from ...core.ir.questions import note
from ...core.ops.shapes import Shape
from ...core.passes.facts import SHARDS, Shapes, is_tensor_input, shape_fact
from ...errors import TraceError
from ..ops.result_shapes import formula_of

RESIZED_BY_SHARDS = frozenset(("all_gather", "reduce_scatter", "all_to_all"))


def needed_shapes(node: Node, shapes: ComputedShapes | None = None) -> tuple[str, ...]:
    """Return the facts from which a value's shape follows; `shapes` remembers those on the way.

    Raise TraceError if it depends on how many shards there are.
    """
    facts = (shapes or ComputedShapes({})).needed(node)
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


def shape_by_operands(shapes: Shapes, node: Node, of_shards: bool = False) -> Shape | None:
    """Return the shape of a computed value; None where a fact is missing."""
    computed = computing(shapes)
    missing = {*computed.needed(node)} - shapes.facts.keys()
    if missing and not (of_shards and missing == {SHARDS}):
        return None
    return computed.of(node)


def computing(shapes: Shapes) -> ComputedShapes:
    """Return the shapes of a capture's values, and the facts that they need."""
    if shapes.computed is None:
        shapes.computed = ComputedShapes(shapes.facts)
    return shapes.computed


def computed_shape(facts: Mapping[str, Any], node: Node) -> Shape:
    return ComputedShapes(facts).of(node)


class ComputedShapes:
    """Shapes of values under facts that may change; each is computed once, by its operands'."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = facts
        self._needed: dict[Node, tuple[str, ...]] = {}
        self._computed: dict[Node, Shape] = {}
        self._used: dict[str, Any] = {}  # the facts by which they were computed

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

    def of(self, node: Node) -> Shape:
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
        formula = formula_of(node.op)
        if formula is not None:
            return formula(*[self._computed[o] for o in node.operands], **attrs)
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
