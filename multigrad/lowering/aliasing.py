"""Which outputs of a forward may share memory, read off its graph."""

from __future__ import annotations

from ..backend.emitted import Aliasing
from ..graph import ops
from ..graph.ir.graph import Node
from ..graph.ir.types import BOOL
from ..graph.ops.results import OWNING
from .function_graph import FunctionGraph

# Ops that return their operand itself where there is nothing to do.
PASSING = (ops.CAST, ops.SUM_TO, ops.BROADCAST_TO, ops.ALL_SUM, ops.ALL_MAX)


def find_aliasing(graphs: FunctionGraph) -> Aliasing:
    """Return which outputs may be an input, a view of one, or another output."""
    sources = [_passed(node) for node in graphs.forward.outputs]
    passed = [i for i, node in enumerate(sources) if node.op is ops.INPUT]
    shared = [
        i
        for i, node in enumerate(sources)
        # One that is to be a copy of an input must not be the input.
        if node in sources[:i] or (i in graphs.copied and _owner(node).op is ops.INPUT)
    ]
    views = [i for i, node in enumerate(graphs.forward.outputs) if node.op.result not in OWNING]
    return Aliasing(tuple(passed), graphs.viewed, tuple(shared), tuple(views))


def _passed(node: Node) -> Node:
    """Return the node whose tensor this one may be, itself if it is always another tensor."""
    # A cast to or from bool always makes another tensor.
    while node.op in PASSING and (node.operands[0].type.dtype == BOOL) == (node.type.dtype == BOOL):
        node = node.operands[0]
    return node


def _owner(node: Node) -> Node:
    """Return the node whose memory this one may share: a view shares that of its operand."""
    while (passed := _passed(node)) is not node or node.op.view:
        node = passed if passed is not node else node.operands[0]
    return node
