"""Derivatives of graphs in reverse mode, from the VJP of each op: `pullback`, `pullbacks`,
`accumulate_all`.

They give the true derivative of a forward without a rule, and the oracle of the tests. The result
is a graph like any other: it can be lowered, shown and differentiated again. The nodes are walked
from the outputs to the inputs. Each turns its cotangent into one share for each operand, and the
shares of a value add up to its cotangent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import UnsupportedOp
from .. import ops
from ..ir.graph import Graph, Node, Region, dependents, make_node, walk
from ..ir.op import FLOAT8, UNKNOWN, T, is_float
from ..ops.properties import CONSTANT, LINEAR, ZERO, spread
from ..passes.simplify import substitute
from ..support.lazy_modules import of_engine, provided
from ..support.threads import SERIALS
from ..trace.trace import Trace, Value, apply, made_in_memory
from ..trace.xp import all as xp

# --- calls of functions with a gradient of their own, and loops: the engine's ---------------------
split_calls = of_engine(__name__, "split_calls", "a loop or a call in a graph")


def without_calls(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    return split_calls(graph) if ops.CALL in graph.ops or graph.loops else (graph, ())


pull_joined = of_engine(__name__, "pull_joined", "the derivative of a loop")


@provided
def retyped(trace: Trace, node: Node, operands: Sequence[Node]) -> dict[str, Region]:
    """Return the regions of a loop, recorded anew with the types that its operands have here."""
    return {}


# --- to record a graph's ops anew -----------------------------------------------------------------
def replay(
    trace: Trace, graph: Graph, given: Mapping[str, Any], outputs: Mapping[int, Any] | None = None
) -> list[Any]:
    """Record a graph's ops in a trace and return its outputs.

    Args:
        given: a symbolic value (or a number, for a scalar) for each input by name.
        outputs: the results of forward, if the graph is a backward that reads them.
    """
    # The input's dtype `T` of the graph becomes the dtype of the value that is given for it.
    name = next((n.attr("name") for n in graph.inputs if n.type.dtype == T), None)
    value = given.get(name) if name is not None else None
    dtype = value.node.type.dtype if isinstance(value, Value) else T
    done: dict[Node, Any] = {}
    own_inputs = frozenset(graph.inputs)
    for node in graph.nodes:
        if node.op is ops.INPUT:
            # Any other is of the code around it: a function there has it in its closure.
            is_own = node in own_inputs or node.type.kind == "key"
            done[node] = given[node.attr("name")] if is_own else trace.value(node)
        elif node.op is ops.CONST:
            done[node] = node.attr("value")
        elif node.op is ops.OUTPUT:
            output = (outputs or {}).get(node.attr("position"))
            done[node] = done[node.operands[0]] if output is None else output
        elif node.op is ops.MEMORY:
            done[node] = made_in_memory(done[node.operands[0]], node.attr("how"))
        else:
            attrs = dict(node.attrs)
            if attrs.get("dtype") == T:
                attrs["dtype"] = dtype
            if node.op.loop:
                attrs |= retyped(trace, node, [done[operand].node for operand in node.operands])
            done[node] = apply(node.op, *(done[operand] for operand in node.operands), **attrs)
            place = graph.locations.get(node)
            if place is not None and isinstance(done[node], Value):
                trace.source.locations.setdefault(done[node].node, place)
    return [done[node] for node in graph.outputs]


@provided
def draw_in(trace: Trace, *graphs: Graph) -> tuple[list[Graph], dict[str, Value]]:
    """Return graphs with the key of each draw as an input, and a capture's next keys for these."""
    return [*graphs], {}


# --- reverse mode ---------------------------------------------------------------------------------
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
    passing = [node for node in order if node.op is not ops.STOP_GRADIENT]
    # Dependence by shape alone carries no derivative.
    active = dependents(passing, targets, by_value=True)
    joined: dict[Node, list[Node]] = {}
    for node in reversed(order):
        if node not in active or node.op is ops.INPUT:
            continue
        shares: Sequence[Value | None]
        if node.op is ops.CALL or node.op.loop == "rows":
            shares = pull_joined(trace, node, order, joined=joined, known=known, active=active)
        elif node in known:
            shares = _pull_op(trace, node, known[node])
        else:
            continue
        if not shares:  # a call or loop is pulled once, at the last of its results
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
