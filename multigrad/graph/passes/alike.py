"""Which values in a turn of a scan have the shape of what is carried, whatever that is.

What is carried keeps its shape. So a value that is made of it element by element, and of which the
next carry is made so, has that shape, too: broadcasting makes nothing smaller.
"""

from __future__ import annotations

from collections.abc import Mapping

from .. import ops
from ..ir.graph import Graph, Node, make_node
from ..ops.results import PER_ELEMENT
from .residuals import by_value
from .scalars import constant
from .simplify import rebuild

THROUGH = (ops.CALL, ops.OUTPUT)  # their first operand's


def find_alike(body: Graph, carried: int) -> dict[Node, int]:
    """Return the nodes of a turn that have the shape of something carried, each with the place of
    the first such.
    """
    above: dict[Node, set[int]] = {node: {i} for i, node in enumerate(body.inputs[:carried])}
    for node in body.nodes:
        if node not in above:
            above[node] = {i for operand in _made_of(node) for i in above[operand]}
    below: dict[Node, set[int]] = {node: set() for node in body.nodes}
    for i, node in enumerate(body.outputs[:carried]):
        below[node].add(i)
        above[node].add(i)
    for node in reversed(body.nodes):
        for operand in _made_of(node):
            below[operand] |= below[node]
    first = [*range(carried)]
    for node in body.nodes:
        alike = sorted(above[node] & below[node])
        for i in alike[1:]:
            first = [first[alike[0]] if one == first[i] else one for one in first]
    found = {node: above[node] & below[node] for node in body.nodes}
    found |= {node: {i} for i, node in enumerate(body.inputs[:carried])}
    return {node: first[min(alike)] for node, alike in found.items() if alike}


def _made_of(node: Node) -> tuple[Node, ...]:
    """Return the tensors of which a node is made element by element."""
    if node.op in THROUGH:
        return node.operands[:1]
    if node.op.result not in PER_ELEMENT:
        return ()
    return tuple([operand for operand in node.operands if operand.type.kind == "tensor"])


def drop_sums(graph: Graph, alike: Mapping[Node, int]) -> tuple[Graph, dict[Node, int]]:
    """Return a graph without what brings tensors to a shape that they have, and which of its nodes
    are known to be alike.

    Args:
        alike: what is known of the nodes that it begins with.
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
    """Return a graph that reads shapes off what is at hand: cotangents by what they are alike."""

    def change(node: Node) -> Node:
        operands = [*node.operands]
        for position in node.op.shape_only:
            own = operands[position]
            head = heads.get(known.get(own, -1))
            if head is not None and head.type.dtype == own.type.dtype:
                operands[position] = head
        if tuple(operands) == node.operands:
            return node
        attrs = dict(node.attrs)
        type_ = node.op.result(*[operand.type for operand in operands], **attrs)
        return make_node(node.op, operands, attrs, type_)

    return rebuild(graph, change)


def read_shapes_alone(graph: Graph) -> Graph:
    """Return a graph whose scans take zeros where a turn reads the shape of a row or constant
    alone: so nothing depends on the numbers there.
    """
    zero = constant(0.0)

    def change(node: Node) -> Node:
        if node.op is not ops.SCAN:
            return node
        body, carried = node.attr("body").graph, node.attr("carried")
        read = by_value(body.outputs)
        operands = [*node.operands]
        for i, (own, operand) in enumerate(zip(body.inputs, node.operands, strict=True)):
            if i >= carried and own not in read and operand.type.kind == "tensor":
                attrs = {"dtype": operand.type.dtype}
                type_ = ops.FULL_LIKE.result(operand.type, zero.type, **attrs)
                operands[i] = make_node(ops.FULL_LIKE, (operand, zero), attrs, type_)
        return make_node(node.op, operands, dict(node.attrs), node.type)

    return rebuild(graph, change)
