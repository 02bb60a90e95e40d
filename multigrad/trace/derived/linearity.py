"""Linearity in grad_out, a property of the graph, and the tangent map that follows from it.

Where a backward map is linear in grad_out, forward mode is its transpose, and the transpose is its
VJP with respect to grad_out. So a rule written for reverse mode gives forward mode without a second
formula.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import UnsupportedOp
from ...graph import ops
from ...graph.ir.graph import Graph, Node
from ...graph.ops.properties import CONSTANT, LINEAR, Degree, is_zero
from ...graph.passes.simplify import simplify, substitute
from ..trace import Trace
from ..xp import all as xp
from .derivatives import accumulate


def is_linear(backward: Graph, cotangents: Sequence[str] = ("grad_out",)) -> bool:
    """Return whether a backward graph is linear in its cotangents together (zero included)."""
    degrees: dict[Node, Degree] = {}
    for node in backward.nodes:
        read = [degrees[o] for i, o in enumerate(node.operands) if i not in node.op.shape_only]
        if node.op is ops.INPUT:
            degrees[node] = LINEAR if node.attr("name") in cotangents else CONSTANT
        elif read.count(CONSTANT) == len(read):
            degrees[node] = CONSTANT
        elif node.op.degree is None or None in read:
            degrees[node] = None
        else:
            degrees[node] = node.op.degree(node, read)
    return all(degrees[output] == LINEAR or is_zero(output) for output in backward.outputs)


def tangent_map(backward: Graph) -> Graph:
    """Return `(tangent, *inputs without grad_out) -> tangent of the output`, the transpose of a
    backward.

    Raises:
        UnsupportedOp: the backward is not linear in grad_out.
    """
    if not is_linear(backward):
        raise UnsupportedOp(
            f"rule {backward.name!r} is not linear in grad_out, so it has no forward mode; lower "
            "it without forward_mode=True"
        )
    grad_out = backward.input("grad_out")
    assert grad_out is not None
    trace = Trace(f"tangent of {backward.name}")
    tangent = trace.input("tangent", grad_out.type)
    transposed = accumulate(trace, backward.outputs[0], grad_out, tangent)
    result = xp.zeros_like(tangent) if transposed is None else transposed
    inputs = (tangent.node, *(node for node in backward.inputs if node is not grad_out))
    graph = Graph(trace.name, inputs, (result.node,), backward.locations)
    # Where only grad_out's shape is read, the tangent's is the same.
    return simplify(substitute(graph, {grad_out: tangent.node}))
