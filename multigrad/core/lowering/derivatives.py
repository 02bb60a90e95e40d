"""Derivatives of graphs. Reverse mode, from the VJP of each op: `pullback`, `pullbacks`,
`accumulate_all`; and forward mode, `tangent_map`, from the graph of a backward.

It gives the true derivative of a forward without a rule, and the oracle of the tests. The result is
a graph like any other: it can be lowered, shown and differentiated again. The nodes are walked from
the outputs to the inputs. Each turns its cotangent into one share for each operand, and the shares
of a value add up to its cotangent.

A function with a gradient of its own, called inside another capture, is part of the outer graph.
`record_call` puts a `call` node around each of its outputs, whose value is that output and whose
operands are the function's inputs. A derivative that meets it passes through the function's own
backward (`GradientCalls.pull`), and never the ops. For `y = f(x)`, where the function computed
`exp(x)`:

    x ──► exp ──► call(f, 0) ──► y        values: along all of it
    x ◄────────── call(f, 0) ◄── y        derivatives: f's backward, a graph of its own

Once derivatives are taken, `drop_calls` takes the nodes out of the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import UnsupportedOp
from .. import ops
from ..ir.graph import (
    Graph,
    Location,
    Node,
    Region,
    dependents,
    every_node,
    key_of_loop,
    make_node,
    regions_in,
    regions_of,
    walk,
)
from ..ir.op import FLOAT8, KEY, UNKNOWN, T, Type, is_float
from ..ops.properties import CONSTANT, LINEAR, ZERO, spread
from ..passes.facts import draws
from ..passes.residuals import marks
from ..passes.simplify import rebuild, simplify, substitute
from ..support.lazy_modules import NEEDS_ENGINE, provided
from ..support.threads import SERIALS
from ..trace.trace import Trace, Value, apply, made_in_memory
from ..trace.xp import all as xp


# --- calls of functions with a gradient of their own ----------------------------------------------
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CustomCall:
    """One call of a function inside a capture; an attribute of its `call` nodes.

    Attributes:
        backward: `*cotangents, *names -> *gradients` of the inputs `wrt`.
        cotangents: the names of the backward's inputs for the outputs' cotangents.
        names: of the operands of its nodes, after the value.
        wrt: those of `names` that the backward gives gradients of.
        outputs: the values of the function's outputs.
        refused: by input name, the message for a derivative with respect to it.
        serial: tells it from all others; a later call has a larger one.
    """

    backward: Graph
    cotangents: tuple[str, ...]
    names: tuple[str, ...]
    wrt: tuple[str, ...]
    outputs: tuple[Node, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    serial: int = field(default_factory=lambda: next(SERIALS))

    def __repr__(self) -> str:
        return f"<call {self.serial} of {self.backward.name}>"


# --- to record a call, and to take calls out ------------------------------------------------------
def record_call(trace: Trace, called: CustomCall, inputs: Sequence[Node]) -> list[Value]:
    """Return the outputs of a call; derivatives pass through its own backward."""
    nodes = [_call_node(called, position, inputs) for position in range(len(called.outputs))]
    return [trace.named(trace.value(node)) for node in nodes]


def _call_node(call: CustomCall, position: int, inputs: Sequence[Node]) -> Node:
    output = call.outputs[position]
    attrs = {"function": call, "position": position}
    return make_node(ops.CALL, (output, *inputs), attrs, output.type)


def route_gradient(trace: Trace, value: Node, to: Node) -> Value:
    """Return the value of one node, whose cotangent is passed unchanged to another node."""
    return trace.named(trace.value(route(value, to)))


def route(value: Node, to: Node) -> Node:
    """Return a distinct node of the same value, whose cotangent is passed unchanged to `to`."""
    grad_out = make_node(ops.INPUT, (), {"name": "grad_out"}, to.type)
    identity = Graph("", (grad_out,), (grad_out,))
    call = CustomCall(identity, ("grad_out",), ("x",), ("x",), (value,))
    return _call_node(call, 0, [to])


def gradients_lost(graph: Graph) -> tuple[str, ...]:
    """Return the names of the functions whose gradients a derivative of the graph would need.

    Without its calls the graph has only their ops. A derivative passes neither through bools and
    integers nor through a marked output, whose gradient is that of the whole pair. The name of
    what `route` returns is "".
    """
    found: dict[str, None] = {}
    seen: set[Node] = set()
    pending = list(graph.outputs)
    while pending:
        node = pending.pop()
        if node in seen or not is_float(node.type) or node.op in (ops.STOP_GRADIENT, ops.OUTPUT):
            continue
        seen.add(node)
        if node.op is ops.CALL:
            found[node.attr("function").backward.name] = None
        for region in regions_of(node):
            found |= dict.fromkeys(gradients_lost(region.graph))
        pending += node.operands_read
    return tuple(found)


def drop_calls(graph: Graph) -> Graph:
    """Return the graph without its `call` nodes, those in regions included."""
    if ops.CALL not in graph.ops and not graph.loops:
        return graph
    graph = _drop_in_regions(graph)
    # A call may be the value of another call, so one pass is not enough.
    while calls := [node for node in graph.nodes if node.op is ops.CALL]:
        graph = substitute(graph, {node: node.operands[0] for node in calls})
    return graph


def _drop_in_regions(graph: Graph) -> Graph:
    regions = regions_in(graph)
    if not any(node.op is ops.CALL for each in regions for node in every_node(each.graph)):
        return graph

    def drop(node: Node) -> Node:
        plain = {
            name: Region(simplify(drop_calls(value.graph)))
            for name, value in node.attrs
            if isinstance(value, Region)
        }
        if not plain:
            return node
        return make_node(node.op, node.operands, {**dict(node.attrs), **plain}, node.type)

    return rebuild(graph, drop)


# --- the derivative of a call ---------------------------------------------------------------------
def pull_call(
    trace: Trace, node: Node, cotangents: Mapping[int, Any], active: Collection[Node]
) -> list[Value | None]:
    """Return the share of each operand of a call's node.

    Args:
        cotangents: those of the call's outputs that are known, by position.
        active: the nodes that depend on what the derivative is taken with respect to.
    """
    call: CustomCall = node.attr("function")
    operands = node.operands[1:]
    for name, operand in zip(call.names, operands, strict=True):
        if name in call.refused and operand in active:
            raise trace.error(f"takes a derivative that is not there: {call.refused[name]}")
    inputs: dict[str, Any] = {
        name: cotangents[i] if i in cotangents else xp.zeros_like(trace.value(output))
        for i, (name, output) in enumerate(zip(call.cotangents, call.outputs, strict=True))
    }
    inputs |= {n: trace.value(o) for n, o in zip(call.names, operands, strict=True)}
    outputs = {
        position: trace.value(_call_node(call, position, operands))
        for _, position in marks(call.backward)
    }
    gradients = replay(trace, call.backward, inputs, outputs)
    by_name = dict(zip(call.wrt, gradients, strict=True))
    return [None, *(by_name.get(name) for name in call.names)]


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
                attrs |= _retyped(trace, node, [done[operand].node for operand in node.operands])
            done[node] = apply(node.op, *(done[operand] for operand in node.operands), **attrs)
            place = graph.locations.get(node)
            if place is not None and isinstance(done[node], Value):
                trace.source.locations.setdefault(done[node].node, place)
    return [done[node] for node in graph.outputs]


def draw_in(trace: Trace, *graphs: Graph) -> tuple[list[Graph], dict[str, Value]]:
    """Return graphs with the key of each draw as an input, and a capture's next keys for these.

    The graphs draw from one key. The capture is told what source code would have told it.
    """
    places: dict[int, Location | None] = {}
    with_inputs = []
    for graph in graphs:
        constants = (node.attr("value") for node in every_node(graph) if node.op is ops.CONST)
        trace.source.numbers.update(number for number in constants if isinstance(number, float))
        inputs: dict[Node, Node] = {}
        for node, j in draws(graph).items():
            # No param can have a name with a space.
            inputs[node] = make_node(ops.INPUT, (), {"name": f"draw {j}"}, KEY)
            places[j] = places.get(j) or graph.locations.get(node)
        with_inputs.append(substitute(graph, inputs))
    keys = {f"draw {j}": trace.next_key() for j in range(1 + max(places, default=-1))}
    for j, place in places.items():
        if place is not None:
            trace.source.locations.setdefault(keys[f"draw {j}"].node, place)
    return with_inputs, keys


def _retyped(trace: Trace, node: Node, operands: Sequence[Node]) -> dict[str, Region]:
    # The regions of a loop are recorded anew with the types that its operands have here.
    regions = {name: value for name, value in node.attrs if isinstance(value, Region)}
    for name, region in regions.items():
        inputs = []
        for input_node, operand in zip(region.graph.inputs, operands, strict=True):
            given_type, shape = operand.type, input_node.type.shape
            # The shape becomes unknown if it may change.
            shape = shape if shape == given_type.shape else UNKNOWN
            type_ = Type(given_type.kind, given_type.dtype, shape)
            inputs.append(make_node(ops.INPUT, (), dict(input_node.attrs), type_))
        values = {each.attr("name"): trace.value(each) for each in inputs}
        outputs = tuple(value.node for value in replay(trace, region.graph, values))
        regions[name] = Region(Graph(name, tuple(inputs), outputs))
    return regions


# --- reverse mode and forward mode ----------------------------------------------------------------
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
