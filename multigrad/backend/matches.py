"""Shapes of graphs that several backends have a faster kernel for; each lowers them itself."""

from __future__ import annotations

from ..graph import ops
from ..graph.ir.graph import Graph, Node, make_node
from ..graph.ir.op import Op
from ..graph.ir.types import FLOAT_SCALAR
from ..graph.passes.simplify import rebuild

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
    """u * u, of a product, as a square, which reads u once."""
    u, other = node.operands
    return make_node(ops.SQUARE, (u,), {}, node.type) if u is other else None


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
    """Return (x, number, divisor) of x * (number / divisor), of a product."""
    for x, quotient in (node.operands, node.operands[::-1]):
        if quotient.op is ops.DIV:
            number, divisor = quotient.operands
            if not is_tensor(number) and is_tensor(divisor) and x.type == divisor.type:
                return x, number, divisor
    return None


def take_norms_as_numbers(graph: Graph, kernel: Op) -> Graph:
    """Compute norms by `kernel`, as numbers, where they are but made into factors of tensors."""
    numbers = {node for node in graph.nodes if node.op is ops.NORM and is_whole_norm(node)}
    if not numbers:
        return graph
    for node in graph.nodes:
        if node in numbers or numbers.isdisjoint(node.operands):
            continue
        alone = all(o in numbers or not is_tensor(o) for o in node.operands)
        if alone and node.op in IN_PYTHON:
            numbers.add(node)
        elif node.op not in MEETING:
            return graph
    if not numbers.isdisjoint(graph.outputs):
        return graph

    def change(node: Node) -> Node:
        return make_node(kernel, node.operands, {}, FLOAT_SCALAR) if is_whole_norm(node) else node

    return rebuild(graph, change)
