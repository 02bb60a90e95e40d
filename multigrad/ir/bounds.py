"""What a graph may take at most, told from its attributes: for graphs that come from a file.

`tile` by a thousand, three times, is short to write and large to run. Bounded here are the copies that static
attributes make of an input, and the bits of integers computed from lengths; what a graph computes of the values and
lengths of its input (all pairs, say) is as large as the input says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from . import ops
from .graph import Graph, Node
from .op import Op
from .verify import InvalidGraph

MOST_COPIES = 1 << 20
MOST_BITS = 1000  # an integer of fewer is a float64 without overflow
LENGTH_BITS = 63

Estimate = Callable[[Node, Sequence[int]], int]


def _repeated(node: Node, sizes: Sequence[int]) -> int:
    return sizes[0] * max(1, node.attr("repeats"))


def _tiled(node: Node, sizes: Sequence[int]) -> int:
    return sizes[0] * math.prod(max(1, n) for n in node.attr("repetitions"))


def _padded(node: Node, sizes: Sequence[int]) -> int:
    return sizes[0] * math.prod(1 + before + after for before, after in node.attr("widths"))


def _filled(node: Node, sizes: Sequence[int]) -> int:
    return max(1, math.prod(abs(n) for n in node.attr("shape"))) * sizes[0]


def _taken(node: Node, sizes: Sequence[int]) -> int:
    return sizes[0] * max(1, len(node.attr("indices")))


def _together(node: Node, sizes: Sequence[int]) -> int:
    return sum(sizes)


def _multiplied(node: Node, sizes: Sequence[int]) -> int:
    return math.prod(sizes)


# How many times its input's size a result is at most; for any other op, as much as its largest operand.
COPIES: dict[Op, Estimate] = {
    ops.REPEAT: _repeated,
    ops.TILE: _tiled,
    ops.PAD: _padded,
    ops.BROADCAST_TO_SHAPE: _filled,
    ops.TAKE: _taken,
    ops.CONCATENATE: _together,
    ops.STACK: _together,
    ops.MATMUL: _multiplied,
    ops.EINSUM: _multiplied,
}


def _carried(node: Node, bits: Sequence[int]) -> int:
    return max(bits) + 1


def _shifted(node: Node, bits: Sequence[int]) -> int:
    return bits[0] + 31


def _doubled(node: Node, bits: Sequence[int]) -> int:
    return 2 * bits[0]


def _length(node: Node, bits: Sequence[int]) -> int:
    return LENGTH_BITS


# The bits of an integer result; for any other op, those of its largest operand.
BITS: dict[Op, Estimate] = {
    ops.ADD: _carried,
    ops.SUB: _carried,
    ops.MUL: _together,
    ops.SQUARE: _doubled,
    ops.BITWISE_LEFT_SHIFT: _shifted,
    ops.DIM: _length,
    ops.SIZE: _length,
}


def check_bounds(graph: Graph) -> None:
    """Check that static attributes make no huge tensor, and arithmetic on lengths no huge integer.

    Raises:
        InvalidGraph: names the node.
    """
    copies: dict[Node, int] = {}
    bits: dict[Node, int] = {}
    for node in graph.nodes():
        copies[node] = _estimate(COPIES, node, copies)
        if copies[node] > MOST_COPIES:
            raise InvalidGraph(
                f"{graph.name}: {node.op.name} makes more than {MOST_COPIES} copies of its input"
            )
        bits[node] = 0
        if node.type.kind == "scalar" and node.type.dtype != "float":
            bits[node] = LENGTH_BITS if not node.operands else _estimate(BITS, node, bits)
        if bits[node] > MOST_BITS:
            raise InvalidGraph(f"{graph.name}: {node.op.name} makes integers of {bits[node]} bits")


def _estimate(table: dict[Op, Estimate], node: Node, known: dict[Node, int]) -> int:
    operands = [known[operand] for operand in node.operands]
    estimate = table.get(node.op)
    return max(operands, default=1) if estimate is None else estimate(node, operands)
