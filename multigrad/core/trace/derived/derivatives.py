"""Reverse mode over a graph, from the VJP of each op: `pullback`, `pullbacks`, `accumulate_all`.

It gives the true derivative of a forward without a rule, and the oracle of the tests. The result is
a graph like any other: it can be lowered, shown and differentiated again.

The nodes are walked from the outputs to the inputs. Each turns its cotangent into one share for
each operand, and the shares of a value add up to its cotangent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ....errors import UnsupportedOp
from ... import ops
from ...ir.graph import Graph, Node, dependents, key_of_loop, make_node, walk
from ...ir.types import FLOAT8, UNKNOWN, is_float
from ...ops.properties import CONSTANT, LINEAR, ZERO, spread
from ...passes.simplify import substitute
from ...support.provided import NEEDS_ENGINE, provided
from ...support.threads import SERIALS
from ..trace import Trace, Value
from ..xp import all as xp
from .custom_calls import pull_call


def pullback(forward: Graph, wrt: str = "tin") -> Graph:
    """Return the graph `(grad_out, *inputs) -> grad` of the cotangent of input `wrt`."""
    return pullbacks(forward, (wrt,), ("grad_out",))


def pullbacks(forward: Graph, wrt: Sequence[str], cotangents: Sequence[str | None]) -> Graph:
    """Return the graph `(*cotangents, *inputs) -> *gradients` of the true derivative.

    Args:
        wrt: the names of float inputs.
        cotangents: a name for each output's cotangent; None for an output without one.
    """
    trace = Trace(f"d({forward.name})")
    upstream = {
        name: trace.input(name, output.type)
        for name, output in zip(cotangents, forward.outputs, strict=True)
        if name is not None
    }
    targets = []
    for name in wrt:
        target = forward.input(name)
        if target is None:
            raise ValueError(f"graph {forward.name!r} has no input {name!r}")
        targets.append(target)
    pairs = zip(cotangents, forward.outputs, strict=True)
    seeds = [(output, upstream[name]) for name, output in pairs if name is not None]
    gradients = accumulate_all(trace, seeds, targets)
    results = [
        xp.zeros_like(trace.value(target)) if gradient is None else gradient
        for target, gradient in zip(targets, gradients, strict=True)
    ]
    inputs = (*(value.node for value in upstream.values()), *forward.inputs)
    return Graph(trace.name, inputs, tuple(result.node for result in results), forward.locations)


def accumulate_all(
    trace: Trace, seeds: Sequence[tuple[Node, Value]], targets: Sequence[Node]
) -> list[Value | None]:
    """Return the cotangent of each target, or None if no output depends on it.

    Args:
        seeds: outputs with their cotangents.
    """
    order = walk(output for output, _ in seeds)
    known: dict[Node, Any] = {}  # cotangents by value: the sums of the shares so far

    def add(value: Node, share: Any) -> None:
        total = known.get(value)
        known[value] = share if total is None else total + share

    for output, cotangent in seeds:
        add(output, cotangent)
    # Dependence by shape alone carries no derivative.
    passing = [node for node in order if node.op is not ops.STOP_GRADIENT]
    active = dependents(passing, targets, by_value=True)
    results = _results_of_one(order)
    for node in reversed(order):
        if node not in active or node.op is ops.INPUT:
            continue
        shares: Sequence[Value | None]
        if node in results:
            nodes = results[node]
            cotangents = {n.attr("position"): known[n] for n in nodes if n in known}
            # The walk is in reverse, so the first node comes last, when all cotangents are known.
            if node is not nodes[0] or not cotangents:
                continue
            pull = pull_call if node.op is ops.CALL else pull_scan
            shares = pull(trace, node, cotangents, active)
        elif node in known:
            shares = _pull_op(trace, node, known[node])
        else:
            continue
        for operand, share in zip(node.operands, shares, strict=True):
            if share is None or operand not in active or not is_float(operand.type):
                continue
            if operand.type.dtype in FLOAT8:
                raise trace.error(
                    f"takes a derivative through {operand.type.dtype}, in which cotangents would "
                    "be rounded. Stop the gradient there, or give one of your own"
                )
            add(operand, _match(trace, share, operand))
    return [known.get(target) for target in targets]


def _results_of_one(order: Sequence[Node]) -> dict[Node, list[Node]]:
    """Return the nodes of calls and scans, each with all that are results of the same one."""
    nodes_of: dict[Any, list[Node]] = {}
    for node in order:
        if node.op is ops.CALL or node.op.loop == "rows":
            key = node.attr("function") if node.op is ops.CALL else key_of_loop(node)
            nodes_of.setdefault(key, []).append(node)
    return {node: nodes for nodes in nodes_of.values() for node in nodes}


@provided
def pull_scan(
    trace: Trace, node: Node, cotangents: Mapping[int, Any], active: Collection[Node]
) -> Sequence[Value | None]:
    """Return the share of each operand of a scan, as `pull_call` of a call."""
    raise UnsupportedOp(f"the derivative of a loop {NEEDS_ENGINE}")


def _pull_op(trace: Trace, node: Node, cotangent: Any) -> Sequence[Value | None]:
    if node.op.vjp is not None:
        operands = [trace.value(operand) for operand in node.operands]
        return node.op.vjp(xp, cotangent, trace.value(node), *operands, **dict(node.attrs))
    if node.op.made_of is not None:
        return _pull_parts(trace, node, cotangent)
    raise UnsupportedOp(f"{node.op.name} has no derivative")


def _pull_parts(trace: Trace, node: Node, cotangent: Any) -> list[Value | None]:
    # The VJP of an op made of others. It is pulled to copies of the operands, since one operand may
    # be made of another; no input of a graph has a name with a space.
    copies = [
        make_node(ops.INPUT, (), {"name": f"operand {next(SERIALS)}"}, operand.type)
        for operand in node.operands
    ]
    assert node.op.made_of is not None
    composed = node.op.made_of(xp, *map(trace.value, copies), **dict(node.attrs))
    shares = accumulate_all(trace, [(composed.node, cotangent)], copies)
    replacements = dict(zip(copies, node.operands, strict=True))
    graphs = [None if share is None else Graph("", (), (share.node,)) for share in shares]
    return [
        None if graph is None else trace.value(substitute(graph, replacements).outputs[0])
        for graph in graphs
    ]


def _match(trace: Trace, share: Any, operand: Node) -> Any:
    # Undo the broadcasting of an operand.
    if not isinstance(share, Value) or share.node.type.kind == "scalar":
        return xp.full_like(trace.value(operand), share)
    same_shape = share.node.type.shape == operand.type.shape != UNKNOWN
    if same_shape or operand.type.kind == "scalar":
        return share
    type_ = ops.SUM_TO.result(share.node.type, operand.type)
    return trace.value(make_node(ops.SUM_TO, (share.node, operand), {}, type_))


def is_linear(backward: Graph, cotangents: Sequence[str] = ("grad_out",)) -> bool:
    """Return whether a backward graph is linear in its cotangents together (zero included)."""
    return find_nonlinear(backward, cotangents) is None


def find_nonlinear(backward: Graph, cotangents: Sequence[str]) -> Node | None:
    """Return the node by which a graph is not linear in these inputs together; None if it is."""
    degrees_of_inputs = {
        node: LINEAR if node.attr("name") in cotangents else CONSTANT
        for node in backward.nodes
        if node.op is ops.INPUT
    }
    degrees = spread(backward, degrees_of_inputs)
    for output in backward.outputs:
        if degrees[output] not in (LINEAR, ZERO):
            nonlinear = (node for node in backward.nodes if degrees[node] is None)
            return output if degrees[output] is not None else next(nonlinear)
    return None
