"""Values in a scan's turn that have the shape of a carried value, whatever that is.

A carried value keeps its shape. So a value that is made of it element by element, and of which the
next carry is made so, has that shape too: broadcasting makes nothing smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .. import ops
from ..ir.graph import Graph, Node, derive_node, make_node, with_operands
from ..ir.types import INPUT_SHAPE, UNKNOWN
from ..ops.results import PER_ELEMENT
from .residuals import by_value
from .scalars import constant
from .simplify import rebuild, simplify

THROUGH = (ops.CALL, ops.OUTPUT)  # their first operand's


def find_alike(body: Graph, carried: int) -> dict[Node, int]:
    """Map nodes of a turn to the position of the first carried value of the same shape."""
    above, below = _around(body, carried)
    first = [*range(carried)]
    for node in body.nodes:
        alike = sorted(above[node] & below[node])
        # A node between several carried values shows that they have one shape.
        for i in alike[1:]:
            first = [first[alike[0]] if one == first[i] else one for one in first]
    found = {node: above[node] & below[node] for node in body.nodes}
    found |= {node: {i} for i, node in enumerate(body.inputs[:carried])}
    return {node: first[min(alike)] for node, alike in found.items() if alike}


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
    taken = {node.type.shape for i, node in enumerate(body.inputs) if i not in assumed}
    shapes = [node.type.shape for node in body.inputs[:carried]]
    for i, shape in enumerate(shapes):
        first = alike[body.inputs[i]]
        if shape == UNKNOWN:
            own = ("alike", i) if first or INPUT_SHAPE in taken else INPUT_SHAPE
            shapes[i] = own if first == i else shapes[first]
    places = {node: alike[node] for node in body.inputs[:carried]}
    places |= {body.inputs[i]: first for i, first in assumed.items()}
    inputs = {
        node: node
        if node not in places
        else make_node(
            node.op, (), dict(node.attrs), replace(node.type, shape=shapes[places[node]])
        )
        for node in body.inputs
    }
    done = dict(inputs)
    for node in body.nodes:
        if node in done:
            continue
        done[node] = new = with_operands(node, map(done.__getitem__, node.operands))
        if new is not node and node in alike:
            type_ = replace(new.type, shape=shapes[alike[node]])
            done[node] = make_node(new.op, new.operands, dict(new.attrs), type_)
    locations = {done[node]: where for node, where in body.locations.items() if node in done}
    outputs = tuple([done[node] for node in body.outputs])
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
    known = dict(alike)

    def change(node: Node) -> Node:
        if node in known:
            return node
        if node.op in (ops.SUM_TO, ops.BROADCAST_TO):
            x, like = node.operands
            if like in known and known.get(x) == known[like]:
                return x
            if like in known:
                known[node] = known[like]
            return node
        made_of = _made_of(node)
        shapes = {known.get(operand) for operand in made_of}
        if len(shapes) == 1 and None not in shapes:
            known[node] = known[made_of[0]]
        return node

    return rebuild(graph, change), known


def shape_of_another(graph: Graph, known: Mapping[Node, int], heads: Mapping[int, Node]) -> Graph:
    """Return a graph that reads shapes from `heads`, tensors of the same shapes, where it can."""

    def change(node: Node) -> Node:
        operands = [*node.operands]
        for position in node.op.shape_only:
            own = operands[position]
            head = heads.get(known.get(own, -1))
            if head is not None and head.type.dtype == own.type.dtype:
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
        read = by_value(body.outputs)
        operands = [*node.operands]
        for i, (own, operand) in enumerate(zip(body.inputs, node.operands, strict=True)):
            # Zeros, so that nothing depends on the numbers there.
            if i >= carried and own not in read and operand.type.kind == "tensor":
                attrs = {"dtype": operand.type.dtype}
                operands[i] = derive_node(ops.FULL_LIKE, (operand, zero), attrs)
        return make_node(node.op, operands, dict(node.attrs), node.type)

    return rebuild(graph, change)
