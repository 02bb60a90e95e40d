"""Reverse mode over a graph, from the VJP of each op.

From here come the true derivative of a forward without a rule and the oracle of the tests. The result is a
graph like any other: it can be lowered, shown and differentiated again.
"""

from __future__ import annotations

from typing import Any

from ..errors import UnsupportedOp
from . import neutral, ops
from .graph import Graph, Node, make_node
from .record import Trace, Value
from .types import UNKNOWN, is_float


def pullback(forward: Graph, wrt: str = "tin") -> Graph:
    """Return the graph `(grad_out, *inputs) -> grad` of the cotangent of input `wrt`.

    Args:
        forward: a graph with one output.
        wrt: the name of a float input.
    """
    trace = Trace(f"d({forward.name})")
    output = forward.outputs[0]
    grad_out = trace.input("grad_out", output.type)
    target = forward.input(wrt)
    if target is None:
        raise ValueError(f"graph {forward.name!r} has no input {wrt!r}")
    gradient = accumulate(trace, output, target, grad_out)
    if gradient is None:
        gradient = neutral.zeros_like(trace.value(target))
    return Graph(trace.name, (grad_out.node, *forward.inputs), (gradient.node,))


def accumulate(trace: Trace, output: Node, target: Node, grad_out: Value) -> Value | None:
    """Return the cotangent of `target`, or None where `output` does not depend on it."""
    cotangents: dict[Node, Any] = {output: grad_out}
    order = list(Graph("", (), (output,)).nodes())
    active = _depend_on(order, target)
    for node in reversed(order):
        if node is target or node not in cotangents or node not in active:
            continue
        if node.op.vjp is None:
            raise UnsupportedOp(f"{node.op.name} has no derivative")
        operands = [trace.value(operand) for operand in node.operands]
        shares = node.op.vjp(
            neutral, cotangents[node], trace.value(node), *operands, **dict(node.attrs)
        )
        for operand, share in zip(node.operands, shares, strict=True):
            if share is None or operand not in active or not is_float(operand.type):
                continue
            share = _match(trace, share, operand)
            known = cotangents.get(operand)
            cotangents[operand] = share if known is None else known + share
    return cotangents.get(target)


def _depend_on(order: list[Node], target: Node) -> set[Node]:
    active = {target}
    for node in order:
        if any(operand in active for operand in node.operands):
            active.add(node)
    return active


def _match(trace: Trace, share: Any, operand: Node) -> Any:
    """Undo the broadcasting of an operand."""
    if not isinstance(share, Value) or share.node.type.kind == "scalar":
        return neutral.full_like(trace.value(operand), share)
    same_shape = share.node.type.shape == operand.type.shape != UNKNOWN
    if same_shape or operand.type.kind == "scalar":
        return share
    type_ = ops.SUM_TO.result(share.node.type, operand.type)
    return trace.value(make_node(ops.SUM_TO, (share.node, operand), {}, type_))
