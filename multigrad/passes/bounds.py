"""What a graph may take at most, told from its attributes: for graphs that come from a file.

`tile` by a thousand, three times, is short to write and large to run. Bounded here are the copies
that static attributes make of an input, and the bits of integers computed from lengths; what a
graph computes of the values and lengths of its input (all pairs, say) is as large as the input
says.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir.graph import Graph, Node, regions_of
from ..ops.properties import LENGTH_BITS
from .verify import InvalidGraph

MOST_COPIES = 1 << 20
MOST_BITS = 1000  # an integer of fewer is a float64 without overflow


def check_bounds(graph: Graph) -> None:
    """Check that static attributes make no huge tensor, and arithmetic on lengths no huge integer.

    Raises:
        InvalidGraph: names the node.
    """
    _check(graph, {}, {})


def _check(graph: Graph, copies: dict[Node, int], bits: dict[Node, int]) -> None:
    for node in graph.nodes:
        if node in copies:
            continue
        for region in regions_of(node):  # a turn keeps the shapes of what it takes
            own = dict(zip(region.graph.inputs, node.operands, strict=True))
            _check(region.graph, *({i: t[o] for i, o in own.items()} for t in (copies, bits)))
        copies[node] = _estimate(node.op.copies, node, copies)
        if copies[node] > MOST_COPIES:
            raise InvalidGraph(
                f"{graph.name}: {node.op.name} makes more than {MOST_COPIES} copies of its input"
            )
        bits[node] = 0
        if node.type.kind == "scalar" and node.type.dtype != "float":
            bits[node] = LENGTH_BITS if not node.operands else _estimate(node.op.bits, node, bits)
        if bits[node] > MOST_BITS:
            raise InvalidGraph(f"{graph.name}: {node.op.name} makes integers of {bits[node]} bits")


def _estimate(estimate: Callable[..., int] | None, node: Node, known: dict[Node, int]) -> int:
    operands = [known[operand] for operand in node.operands]
    return max(operands, default=1) if estimate is None else estimate(node, operands)
