"""Facts about shapes in a capture: the inputs' shapes from which a value's shape follows, and the
values in a scan's turn that have the shape of a carried one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import TraceError
from .. import ops
from ..ir.graph import Graph, Node, derive_node, make_node, with_operands
from ..ir.questions import note
from ..ir.types import BOOL, FLOATS, INPUT_SHAPE, SCALAR_SHAPE, UNKNOWN, WHOLE, T
from ..ops.results import PER_ELEMENT
from .residuals import by_value
from .simplify import constant, rebuild, simplify

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


# --- shapes of a scan's carried values -----------------------------------------------------------
# A carried value keeps its shape, whatever that is. So a value that is made of it element by
# element, and of which the next carry is made so, has that shape too: broadcasting makes nothing
# smaller.
THROUGH = (ops.CALL, ops.OUTPUT)  # their first operand's


def find_alike(body: Graph, carried: int) -> dict[Node, int]:
    """Map nodes of a turn to the position of the first carried value of the same shape."""
    above, below = _around(body, carried)
    first_alike = [*range(carried)]  # for each carried value, the first of its shape
    for node in body.nodes:
        positions = sorted(above[node] & below[node])
        # A node between several carried values shows that they have one shape.
        for i in positions[1:]:
            first_alike = [
                first_alike[positions[0]] if each == first_alike[i] else each
                for each in first_alike
            ]
    positions_of = {node: above[node] & below[node] for node in body.nodes}
    positions_of |= {node: {i} for i, node in enumerate(body.inputs[:carried])}
    return {
        node: first_alike[min(positions)] for node, positions in positions_of.items() if positions
    }


def _around(body: Graph, carried: int) -> tuple[dict[Node, set[int]], dict[Node, set[int]]]:
    # `above`: the carried values of which a node is made element by element. `below`: the next
    # carried values that are made so of it.
    above: dict[Node, set[int]] = {node: {i} for i, node in enumerate(body.inputs[:carried])}
    for node in body.nodes:
        if node not in above:
            above[node] = {i for operand in _made_of(node) for i in above[operand]}
    below: dict[Node, set[int]] = {node: set() for node in (*body.nodes, *body.inputs)}
    for i, node in enumerate(body.outputs[:carried]):
        below[node].add(i)
        above[node].add(i)
    for node in reversed(body.nodes):
        for operand in _made_of(node):
            below[operand] |= below[node]
    return above, below


def assume_alike(body: Graph, carried: int, rows: int) -> tuple[Graph, dict[int, int]]:
    """Return a turn with shapes in its types, and the rows assumed to have a carried shape.

    They, or their gradients, make a next carried value element by element, but could be smaller.
    """
    alike, (_, below) = find_alike(body, carried), _around(body, carried)
    for node in body.nodes:
        # `like` is the tensor whose gradient the sum is.
        if node.op is ops.SUM_TO and node.operands[0] in alike:
            below[node.operands[1]].add(alike[node.operands[0]])
    assumed = {
        i: alike[body.inputs[min(below[node])]]
        for i, node in enumerate(body.inputs[carried : carried + rows], carried)
        if below[node]
    }
    input_shapes = {node.type.shape for i, node in enumerate(body.inputs) if i not in assumed}
    shapes = [node.type.shape for node in body.inputs[:carried]]
    # An unknown shape is named by its carried value; that of value 0 as the input's, if none is.
    for i, shape in enumerate(shapes):
        first = alike[body.inputs[i]]
        if shape == UNKNOWN:
            own_shape = ("alike", i) if first or INPUT_SHAPE in input_shapes else INPUT_SHAPE
            shapes[i] = own_shape if first == i else shapes[first]
    shape_places = {node: alike[node] for node in body.inputs[:carried]}
    shape_places |= {body.inputs[i]: first for i, first in assumed.items()}
    inputs = {
        node: node
        if node not in shape_places
        else make_node(
            node.op, (), dict(node.attrs), replace(node.type, shape=shapes[shape_places[node]])
        )
        for node in body.inputs
    }
    copies = dict(inputs)
    for node in body.nodes:
        if node in copies:
            continue
        copies[node] = copy = with_operands(node, map(copies.__getitem__, node.operands))
        if copy is not node and node in alike:
            type_ = replace(copy.type, shape=shapes[alike[node]])
            copies[node] = make_node(copy.op, copy.operands, dict(copy.attrs), type_)
    locations = {copies[node]: place for node, place in body.locations.items() if node in copies}
    outputs = tuple([copies[node] for node in body.outputs])
    return simplify(Graph(body.name, tuple(inputs.values()), outputs, locations)), assumed


def _made_of(node: Node) -> tuple[Node, ...]:
    if node.op in THROUGH:
        return node.operands[:1]
    if node.op.result not in PER_ELEMENT:
        return ()
    return tuple([operand for operand in node.operands if operand.type.kind == "tensor"])


def drop_sums(graph: Graph, alike: Mapping[Node, int]) -> tuple[Graph, dict[Node, int]]:
    """Return a graph without changes to the same shape, and the nodes of known shapes.

    `alike` has the nodes whose shapes are known before.
    """
    shape_ids = dict(alike)

    def change(node: Node) -> Node:
        if node in shape_ids:
            return node
        if node.op in (ops.SUM_TO, ops.BROADCAST_TO):
            x, like = node.operands
            if like in shape_ids and shape_ids.get(x) == shape_ids[like]:
                return x
            if like in shape_ids:
                shape_ids[node] = shape_ids[like]
            return node
        made_of = _made_of(node)
        shapes = {shape_ids.get(operand) for operand in made_of}
        if len(shapes) == 1 and None not in shapes:
            shape_ids[node] = shape_ids[made_of[0]]
        return node

    return rebuild(graph, change), shape_ids


def shape_of_another(graph: Graph, known: Mapping[Node, int], heads: Mapping[int, Node]) -> Graph:
    """Return a graph that reads shapes from `heads`, tensors of the same shapes, where it can."""

    def change(node: Node) -> Node:
        operands = [*node.operands]
        for position in node.op.shape_only:
            operand = operands[position]
            head = heads.get(known.get(operand, -1))
            if head is not None and head.type.dtype == operand.type.dtype:
                operands[position] = head
        return with_operands(node, operands)

    return rebuild(graph, change)


def read_shapes_alone(graph: Graph) -> Graph:
    """Return a graph whose scans take zeros for operands that are read for their shape only."""
    zero = constant(0.0)

    def change(node: Node) -> Node:
        if node.op is not ops.SCAN:
            return node
        body, carried = node.attr("body").graph, node.attr("carried")
        read_nodes = by_value(body.outputs)
        operands = [*node.operands]
        for i, (parameter, operand) in enumerate(zip(body.inputs, node.operands, strict=True)):
            # Zeros, so that nothing depends on the numbers there.
            if i >= carried and parameter not in read_nodes and operand.type.kind == "tensor":
                attrs = {"dtype": operand.type.dtype}
                operands[i] = derive_node(ops.FULL_LIKE, (operand, zero), attrs)
        return make_node(node.op, operands, dict(node.attrs), node.type)

    return rebuild(graph, change)
