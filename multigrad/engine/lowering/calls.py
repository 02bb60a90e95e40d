"""Calls of functions with a gradient of their own, and what they share with loops, in derivatives.

Such a function, called inside another capture, is part of the outer graph. `record_call` puts a
`call` node around each of its outputs, whose value is that output and whose operands are the
function's inputs. A derivative that meets it passes through the function's own backward
(`pull_call`), and never the ops. For `y = f(x)`, where the function computed `exp(x)`:

    x ──► exp ──► call(f, 0) ──► y        values: along all of it
    x ◄────────── call(f, 0) ◄── y        derivatives: f's backward, a graph of its own

Once derivatives are taken, `drop_calls` takes the nodes out of the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core import ops
from ...core.ir.graph import (
    Graph,
    Location,
    Node,
    Region,
    every_node,
    make_node,
    regions_in,
    regions_of,
)
from ...core.ir.op import KEY, UNKNOWN, Type, is_float
from ...core.lowering.derivatives import replay
from ...core.passes.simplify import rebuild, simplify, substitute
from ...core.support.threads import SERIALS
from ...core.trace.trace import Trace, Value
from ...core.trace.xp import all as xp
from ..ops.loops import key_of_loop
from ..passes.residuals import marks
from ..passes.verify import draws
from ..trace.derived.scans import pull_scan


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


def split_calls(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """Return the graph without its calls, and what `gradients_lost` says of it."""
    return drop_calls(graph), gradients_lost(graph)


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


def results_of_one(order: Sequence[Node]) -> dict[Node, list[Node]]:
    """Return the nodes of calls and scans, each with all that are results of the same one."""
    nodes_of: dict[Any, list[Node]] = {}
    for node in order:
        if node.op is ops.CALL or node.op.loop == "rows":
            key = node.attr("function") if node.op is ops.CALL else key_of_loop(node)
            nodes_of.setdefault(key, []).append(node)
    return {node: nodes for nodes in nodes_of.values() for node in nodes}


def pull_joined(
    trace: Trace,
    node: Node,
    order: Sequence[Node],
    *,
    joined: dict[Node, list[Node]],
    known: Mapping[Node, Any],
    active: Collection[Node],
) -> Sequence[Value | None]:
    """Return the share of each operand of a call or scan, by the last node of its results.

    Args:
        joined: a place for the nodes that are results of the same one, by each of them.
        known: the cotangents.
        active: the nodes that depend on what the derivative is taken with respect to.
    """
    if not joined:
        joined.update(results_of_one(order))
    nodes = joined[node]
    cotangents = {n.attr("position"): known[n] for n in nodes if n in known}
    # The walk is in reverse, so the first node comes last, when all cotangents are known.
    if node is not nodes[0] or not cotangents:
        return ()
    pull = pull_call if node.op is ops.CALL else pull_scan
    return pull(trace, node, cotangents, active)


def retyped(trace: Trace, node: Node, operands: Sequence[Node]) -> dict[str, Region]:
    """Return the regions of a loop, recorded anew with the types that its operands have here."""
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


# --- draws of a graph that is part of another capture -------------------------------------------
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
