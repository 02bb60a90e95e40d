"""The memory of results: which nodes are their operand itself or a view of it.

Graphs are values, and where nobody can write to a tensor nothing else matters. Elsewhere a result
must share memory with what the code lets it share: `MEMORY` nodes say where it makes a copy.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ...core import ops
from ...core.ir.graph import Graph, Node, make_node
from ...core.passes.simplify import ALIAS, COPY, passed, without

CONSTANT = "array"
# Ours is a view where the code's own result is none: `x.max(1)[0]`, of which we drop an axis.
OWN = "own"
KEPT = "kept"  # as `MEMORY` says it: a value that the code keeps, which is not computed again


def in_memory(node: Node, how: str) -> Node:
    return make_node(ops.MEMORY, (node,), {"how": how}, node.type)


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


def is_kept_copy(node: Node) -> bool:
    return node.op is ops.MEMORY and node.attr("how") == KEPT


def without_kept(graph: Graph) -> Graph:
    """Return a graph that may compute again what code keeps."""
    return without(graph, ops.MEMORY, is_kept_copy)
