"""Forward mode of a backward: a backward that is linear is transposed into a map of tangents.

The VJP of a linear map is its transpose. So the graph `cotangents -> gradients`, differentiated
with respect to the cotangents, is `tangents of the inputs -> tangents of the outputs`. A backward
that is not linear, such as one that clips, has no forward mode.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import UnsupportedOp
from ...graph import ops
from ...graph.ir.graph import Graph, Node, make_node
from ...graph.ops.properties import CONSTANT, LINEAR, is_zero, spread
from ...graph.passes.facts import read_shapes_alone
from ...graph.passes.residuals import by_value
from ...graph.passes.simplify import simplify, substitute
from ..coercion import cast_node
from ..trace import Trace, Value
from ..xp import all as xp
from .derivatives import accumulate_all


def tangent_map(
    backward: Graph,
    cotangents: Sequence[str] = ("grad_out",),
    tangents: Sequence[Node] = (),
    outputs: Sequence[Node] = (),
    noun: str = "rule",
) -> Graph:
    """Return the graph `*tangents, *inputs without cotangents -> tangents of the outputs`.

    Args:
        cotangents: the names of the backward's.
        tangents: an input for each gradient of the backward; by default one named "tangent".
        outputs: nodes with the shapes of the cotangents; a rule's has the tangent's.
        noun: names the backward in messages.

    Raises:
        UnsupportedOp: the backward is not linear in its cotangents.
    """
    together = cotangents[0] if len(cotangents) == 1 else "its cotangents"
    if not is_linear(backward, cotangents):
        raise UnsupportedOp(
            f"{noun} {backward.name!r} is not linear in {together}, so it has no forward mode; "
            "take its gradient by reverse mode"
        )
    heads = [backward.input(name) for name in cotangents]  # None: the backward lacks the input
    if not tangents:
        assert heads[0] is not None
        tangents = (make_node(ops.INPUT, (), {"name": "tangent"}, heads[0].type),)
    if not outputs:
        outputs = tangents
    pairs = zip(heads, outputs, strict=True)
    known_heads = {head: output for head, output in pairs if head is not None}
    trace = Trace(f"tangent of {backward.name}")
    results = _transpose(trace, backward, heads, tangents, outputs)
    others = [node for node in backward.inputs if node not in known_heads]
    inputs = dict.fromkeys((*tangents, *others, *outputs))
    graph = Graph(trace.name, tuple(inputs), results, backward.locations)
    graph = simplify(read_shapes_alone(graph))
    if not by_value(graph.outputs).isdisjoint(known_heads):
        raise UnsupportedOp(f"{noun} {backward.name!r}: the transpose of it reads {together}")
    # What it still reads of the cotangents is their shapes, which are those of the outputs.
    return simplify(substitute(graph, known_heads))


def _transpose(
    trace: Trace,
    backward: Graph,
    heads: Sequence[Node | None],
    tangents: Sequence[Node],
    outputs: Sequence[Node],
) -> tuple[Node, ...]:
    # For each output the derivative of the backward with respect to its cotangent.
    seeds = [
        (gradient, _in_dtype_of(trace.value(tangent), gradient))
        for gradient, tangent in zip(backward.outputs, tangents, strict=True)
    ]
    targets = [head for head in heads if head is not None]
    found = dict(zip(targets, accumulate_all(trace, seeds, targets), strict=True))
    results = []
    for head, output in zip(heads, outputs, strict=True):
        share = None if head is None else found[head]
        zeros = xp.zeros_like(trace.value(output))
        results.append((zeros if share is None else _in_dtype_of(share, output)).node)
    return tuple(results)


def _in_dtype_of(value: Value, node: Node) -> Value:
    # The transpose of a cast that a framework makes on the way.
    dtype = node.type.dtype
    same = value.node.type.dtype == dtype or node.type.kind == "scalar"
    return value if same else value.trace.value(cast_node(value.node, dtype))


def is_linear(backward: Graph, cotangents: Sequence[str] = ("grad_out",)) -> bool:
    """Return whether a backward graph is linear in its cotangents together (zero included)."""
    return find_nonlinear(backward, cotangents) is None


def find_nonlinear(backward: Graph, cotangents: Sequence[str]) -> Node | None:
    """Return the node by which a graph is not linear in these inputs together; None if it is."""
    given = {
        node: LINEAR if node.attr("name") in cotangents else CONSTANT
        for node in backward.nodes
        if node.op is ops.INPUT
    }
    degrees = spread(backward, given)
    for output in backward.outputs:
        if degrees[output] != LINEAR and not is_zero(output):
            lost = (node for node in backward.nodes if degrees[node] is None)
            return output if degrees[output] is not None else next(lost)
    return None
