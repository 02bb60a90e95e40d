"""Turns of loops: the values of a scan's turn that have the shape of a carried one, and what turns
are given and give.

A carried value keeps its shape, whatever that is. So a value that is made of it element by element,
and of which the next carry is made so, has that shape too: broadcasting makes nothing smaller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core import ops
from ...core.ir.graph import Graph, Node, make_node, with_operands
from ...core.ir.op import INPUT_SHAPE, PER_ELEMENT, UNKNOWN
from ...core.passes.simplify import rebuild, simplify

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
            node.op, (), dict(node.attrs), node.type._replace(shape=shapes[shape_places[node]])
        )
        for node in body.inputs
    }
    copies = dict(inputs)
    for node in body.nodes:
        if node in copies:
            continue
        copies[node] = copy = with_operands(node, map(copies.__getitem__, node.operands))
        if copy is not node and node in alike:
            type_ = copy.type._replace(shape=shapes[alike[node]])
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


# --- of all loops ---------------------------------------------------------------------------------
def sources_of_turns(nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    """Return what the inputs of loops' bodies are given, and what gives the results of loops."""
    sources: dict[Node, list[Node]] = {}
    for node in nodes:
        if node.op.loop:
            body = node.attr("body").graph
            sources[node] = [body.outputs[node.attr("position")]]
            carried = len(body.outputs) if node.op.loop == "values" else node.attr("carried")
            turns = (body, node.attr("condition").graph) if node.op.loop == "values" else (body,)
            for graph in turns:
                for i, each in enumerate(graph.inputs):
                    given = (node.operands[i], *body.outputs[i : i + 1][: i < carried])
                    sources.setdefault(each, []).extend(given)
    return sources
