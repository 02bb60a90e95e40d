"""The memory of results: which nodes are their operand itself or a view of it.

Graphs are values, and where nobody can write to a tensor nothing else matters. Elsewhere a result
must share memory with what the code lets it share: `MEMORY` nodes say where it makes a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from .. import ops
from ..ir.graph import Graph, Node, make_node
from ..ir.op import BOOL, Op
from .simplify import substitute

# Ops that return their operand itself where there is nothing to do.
PASSING = frozenset(("cast", "sum_to", "broadcast_to", "all_sum", "all_max"))
CONSTANT = "array"
# Ours is a view where the code's own result is none: `x.max(1)[0]`, of which we drop an axis.
COPY, ALIAS, OWN = "copy", "alias", "own"
KEPT = "kept"  # as `MEMORY` says it: a value that the code keeps, which is not computed again


def nodes_of(graph: Graph, op: Op) -> Sequence[Node]:
    """Return the nodes of an op."""
    return [node for node in graph.nodes if node.op is op] if op in graph.ops else ()


def in_memory(node: Node, how: str) -> Node:
    return make_node(ops.MEMORY, (node,), {"how": how}, node.type)


def is_layout(node: Node) -> bool:
    """Return whether a node is its operand, copied if its order in memory is another."""
    return node.op is ops.MEMORY and node.attr("how").startswith("contiguous")


def passed(node: Node) -> Node:
    """Return the node whose tensor this one may be, itself if it is always another tensor."""
    while is_layout(node) or node.op.name in PASSING:
        (operand, *_) = node.operands
        # A cast to or from bool always makes another tensor.
        if (operand.type.dtype == BOOL) != (node.type.dtype == BOOL):
            break
        node = operand
    return node


def owner_of_memory(node: Node) -> Node:
    """Return the node whose memory this one may share: a view shares that of its operand."""
    while (source := passed(node)) is not node or node.op.view or is_alias(node):
        node = source if source is not node else node.operands[0]
    return node


def is_alias(node: Node) -> bool:
    return node.op is ops.MEMORY and node.attr("how") in (ALIAS, OWN)


def may_share(node: Node) -> bool:
    """Return whether this may be another node's tensor, or a view of one."""
    return node.op is ops.INPUT or owner_of_memory(node) is not node


def owned(graph: Graph, others: Collection[Node] = ()) -> Graph:
    """Return a graph each of whose outputs has memory of its own, not that of others' owners."""
    nodes: list[Node] = []
    sources = {*others}
    for node in graph.outputs:
        source = owner_of_memory(node)
        is_own = source.op is not ops.INPUT and source not in sources
        nodes.append(node if is_own or node.type.kind != "tensor" else in_memory(node, COPY))
        sources.add(source)
    outputs = tuple(nodes)
    return graph if outputs == graph.outputs else replace(graph, outputs=outputs)


def apart_from_constants(graph: Graph) -> Graph:
    """Return a graph whose outputs are not in the memory of its constants, for later calls."""
    held = [owner_of_memory(node).op.name == CONSTANT for node in graph.outputs]
    if not any(held):
        return graph
    pairs = zip(graph.outputs, held, strict=True)
    return replace(
        graph, outputs=tuple(in_memory(n, COPY) if is_held else n for n, is_held in pairs)
    )


def without_memory(graph: Graph) -> Graph:
    """Return a graph for tensors that nobody writes to, where a copy is the tensor itself."""
    return without(graph, ops.MEMORY)


def without(graph: Graph, op: Op, is_meant: Callable[[Node], bool] | None = None) -> Graph:
    """Return a graph with the operand of each node of an op in its place; `is_meant`: of which."""
    # Again until there is none, because such a node may have been computed from another.
    while nodes := [*filter(is_meant, nodes_of(graph, op))]:
        graph = substitute(graph, {node: node.operands[0] for node in nodes})
    return graph


def is_kept_copy(node: Node) -> bool:
    return node.op is ops.MEMORY and node.attr("how") == KEPT


def without_kept(graph: Graph) -> Graph:
    """Return a graph that may compute again what code keeps."""
    return without(graph, ops.MEMORY, is_kept_copy)
