"""Linearity in grad_out, a property of the graph, and the tangent map that follows from it.

Where a backward map is linear in grad_out, forward mode is its transpose, and the transpose is its VJP with respect
to grad_out. So a rule written for reverse mode gives forward mode without a second formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import UnsupportedOp
from . import neutral, ops
from .derivatives import accumulate
from .graph import Graph, Node
from .ops import Op
from .passes import simplify, substitute
from .record import Trace

CONSTANT, LINEAR = 0, 1
Degree = int | None  # None: neither


def is_linear(backward: Graph, cotangents: Sequence[str] = ("grad_out",)) -> bool:
    """Return whether a backward graph is linear in its cotangents together (zero included)."""
    degrees: dict[Node, Degree] = {}
    for node in backward.nodes():
        degrees[node] = _degree(node, degrees, cotangents)
    return all(degrees[output] == LINEAR or _is_zero(output) for output in backward.outputs)


def _degree(node: Node, degrees: dict[Node, Degree], cotangents: Sequence[str]) -> Degree:
    if node.op is ops.INPUT:
        return LINEAR if node.attr("name") in cotangents else CONSTANT
    shape_only = ops.SHAPE_ONLY.get(node.op, ())
    operands = [degrees[o] for i, o in enumerate(node.operands) if i not in shape_only]
    if all(degree == CONSTANT for degree in operands):
        return CONSTANT
    combine = DEGREES.get(node.op)
    return None if combine is None or None in operands else combine(node, operands)


def _same(node: Node, degrees: list[Degree]) -> Degree:
    """Linear only where every operand is."""
    return LINEAR if all(degree == LINEAR for degree in degrees) else None


def _product(node: Node, degrees: list[Degree]) -> Degree:
    return LINEAR if sorted(degrees) == [CONSTANT, LINEAR] else None  # type: ignore[type-var]


def _quotient(node: Node, degrees: list[Degree]) -> Degree:
    return LINEAR if degrees == [LINEAR, CONSTANT] else None


def _choice(node: Node, degrees: list[Degree]) -> Degree:
    condition, *values = zip(node.operands, degrees, strict=True)
    linear = all(degree == LINEAR or _is_zero(value) for value, degree in values)
    return LINEAR if condition[1] == CONSTANT and linear else None


def _one_of_all(node: Node, degrees: list[Degree]) -> Degree:
    """Linear in one operand, the others constant: a product of them all."""
    return LINEAR if degrees.count(LINEAR) == 1 else None


def _first(node: Node, degrees: list[Degree]) -> Degree:
    """Linear in the first operand, arranged by the others."""
    return LINEAR if degrees[0] == LINEAR and LINEAR not in degrees[1:] else None


def _each(node: Node, degrees: list[Degree]) -> Degree:
    """Linear where every operand is, or is zero."""
    pairs = zip(node.operands, degrees, strict=True)
    return LINEAR if all(degree == LINEAR or _is_zero(value) for value, degree in pairs) else None


def _is_zero(node: Node) -> bool:
    if node.op is ops.FULL_LIKE:
        return _is_zero(node.operands[1])
    return node.op is ops.CONST and node.attr("value") == 0


def _padded(node: Node, degrees: list[Degree]) -> Degree:
    return LINEAR if node.attr("fill") == 0 else None


REARRANGEMENTS = (
    ops.RESHAPE, ops.RESHAPE_LIKE, ops.SQUEEZE, ops.PERMUTE_DIMS, ops.SWAPAXES, ops.MOVEAXIS,
    ops.FLIP, ops.ROLL, ops.TRIL, ops.TRIU, ops.BROADCAST_TO_SHAPE, ops.GETITEM, ops.SETITEM,
    ops.TAKE, ops.UNTAKE, ops.HALF, ops.TILE, ops.UNTILE, ops.REPEAT, ops.UNREPEAT,
)  # fmt: skip
DEGREES: dict[Op, Callable[[Node, list[Degree]], Degree]] = {
    ops.ADD: _same,
    ops.SUB: _same,
    ops.NEG: _same,
    ops.MUL: _product,
    ops.DIV: _quotient,
    ops.WHERE: _choice,
    ops.CAST: _same,
    ops.SUM: _same,
    ops.MEAN: _same,
    ops.SUM_TO: _same,
    ops.BROADCAST_TO: _same,
    ops.EXPAND_DIMS: _same,
    ops.FULL_LIKE: _same,
    ops.DEG2RAD: _same,
    ops.RAD2DEG: _same,
    ops.CUMSUM: _same,
    ops.HOLD: _first,
    ops.UNHOLD: _first,
    ops.SORT_LIKE: _first,
    ops.UNSORT: _first,
    ops.MATMUL: _one_of_all,
    ops.MATMUL_LEFT: _one_of_all,
    ops.MATMUL_RIGHT: _one_of_all,
    ops.EINSUM: _one_of_all,
    ops.CONCATENATE: _each,
    ops.STACK: _each,
    ops.PAD: _padded,
    ops.PART: _first,
    ops.UNPART: _first,
    **dict.fromkeys(REARRANGEMENTS, _same),
}


def tangent_map(backward: Graph) -> Graph:
    """Return `(tangent, *inputs without grad_out) -> tangent of the output`, the transpose of a backward.

    Raises:
        UnsupportedOp: the backward is not linear in grad_out.
    """
    if not is_linear(backward):
        raise UnsupportedOp(
            f"rule {backward.name!r} is not linear in grad_out, so it has no forward mode; "
            f"lower it without forward_mode=True"
        )
    grad_out = backward.input("grad_out")
    assert grad_out is not None
    trace = Trace(f"tangent of {backward.name}")
    tangent = trace.input("tangent", grad_out.type)
    transposed = accumulate(trace, backward.outputs[0], grad_out, tangent)
    result = neutral.zeros_like(tangent) if transposed is None else transposed
    inputs = (tangent.node, *(node for node in backward.inputs if node is not grad_out))
    graph = Graph(trace.name, inputs, (result.node,), backward.locations)
    # Where only grad_out's shape is read, the tangent's is the same.
    return simplify(substitute(graph, {grad_out: tangent.node}))
