"""Shapes of graphs that several backends have a faster kernel for: found here, lowered by each backend's own rows."""

from __future__ import annotations

from ..ir import ops
from ..ir.graph import Graph, Node, make_node
from ..ir.op import Op
from ..ir.passes import rebuild
from ..ir.types import FLOAT_SCALAR

# The Euclidean norm of all elements.
WHOLE = {"axis": None, "keepdims": False, "ord": 2}
# What may be computed of a norm in Python, and where such a number may meet a tensor.
IN_PYTHON = (ops.MAXIMUM, ops.MINIMUM, ops.DIV, ops.MUL, ops.ADD, ops.SUB)
MEETING = (ops.MUL, ops.DIV, ops.ADD, ops.SUB)


def is_tensor(node: Node) -> bool:
    """Return whether a value is no scalar."""
    return node.type.kind == "tensor"


def is_number(node: Node, value: float) -> bool:
    """Return whether a value is that constant."""
    return node.op is ops.CONST and node.attr("value") == value


def is_zero(node: Node) -> bool:
    """Return whether a value is the number +0."""
    return node.op is ops.CONST and repr(node.attr("value")) in ("0", "0.0", "False")


def is_whole_norm(node: Node) -> bool:
    """Return whether a value is the Euclidean norm of all elements of a tensor."""
    return node.op is ops.NORM and dict(node.attrs) == WHOLE


def square_products(node: Node) -> Node | None:
    """u * u as a square, which reads u once."""
    is_square = node.op is ops.MUL and node.operands[0] is node.operands[1]
    return make_node(ops.SQUARE, node.operands[:1], {}, node.type) if is_square else None


def find_one_plus_square(node: Node) -> tuple[Node, Node] | None:
    """Return (x, number) of 1 + (number x)^2."""
    if node.op is not ops.ADD:
        return None
    for one, square in (node.operands, node.operands[::-1]):
        twice = square.op is ops.SQUARE or square.op is ops.MUL
        inner = square.operands[0] if twice else square
        if not is_number(one, 1) or not twice or inner is not square.operands[-1]:
            continue
        if inner.op is ops.MUL:
            for number, x in (inner.operands, inner.operands[::-1]):
                if not is_tensor(number) and is_tensor(x):
                    return x, number
    return None


def find_scaled_quotient(node: Node) -> tuple[Node, Node, Node] | None:
    """Return (x, number, divisor) of x * (number / divisor)."""
    if node.op is not ops.MUL:
        return None
    for x, quotient in (node.operands, node.operands[::-1]):
        if quotient.op is ops.DIV:
            number, divisor = quotient.operands
            if not is_tensor(number) and is_tensor(divisor) and x.type == divisor.type:
                return x, number, divisor
    return None


def take_norms_as_numbers(graph: Graph, kernel: Op) -> Graph:
    """Compute norms by `kernel`, which gives a number, where all that is made of them are factors of tensors."""
    numbers: set[Node] = set()
    for node in graph.nodes():
        from_numbers = not numbers.isdisjoint(node.operands)
        alone = all(o in numbers or not is_tensor(o) for o in node.operands)
        if is_whole_norm(node) or (from_numbers and alone and node.op in IN_PYTHON):
            numbers.add(node)
        elif from_numbers and node.op not in MEETING:
            return graph
    if not numbers or not numbers.isdisjoint(graph.outputs):
        return graph

    def change(node: Node) -> Node:
        return make_node(kernel, node.operands, {}, FLOAT_SCALAR) if is_whole_norm(node) else node

    return rebuild(graph, change)
