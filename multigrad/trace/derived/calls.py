"""Calls of captured functions that have a gradient of their own, inside another capture.

The inner function's ops are part of the outer graph; a `call` node around each of its outputs says
which backward a derivative passes through. Once derivatives are taken, the nodes are dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ...graph import ops
from ...graph.ir.graph import Graph, Node, Region, every_node, make_node, regions_in
from ...graph.ir.types import UNKNOWN, T, Type
from ...graph.passes.residuals import marks
from ...graph.passes.simplify import rebuild, simplify, substitute
from ...graph.support.class_bases import dataclass
from ...graph.support.threads import SERIALS
from ..trace import Trace, Value, apply
from ..xp import all as xp


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
    first = given.get(name) if name is not None else None
    dtype = first.node.type.dtype if isinstance(first, Value) else T
    done: dict[Node, Any] = {}
    for node in graph.nodes:
        if node.op is ops.INPUT:
            done[node] = given[node.attr("name")]
        elif node.op is ops.CONST:
            done[node] = node.attr("value")
        elif node.op is ops.OUTPUT:
            own = (outputs or {}).get(node.attr("position"))
            done[node] = done[node.operands[0]] if own is None else own
        else:
            attrs = dict(node.attrs)
            if attrs.get("dtype") == T:
                attrs["dtype"] = dtype
            if node.op in (ops.WHILE_LOOP, ops.SCAN):
                attrs |= _retyped(trace, node, [done[operand].node for operand in node.operands])
            done[node] = apply(node.op, *(done[operand] for operand in node.operands), **attrs)
            where = graph.locations.get(node)
            if where is not None and isinstance(done[node], Value):
                trace.source.locations.setdefault(done[node].node, where)
    return [done[node] for node in graph.outputs]


def _retyped(trace: Trace, node: Node, operands: Sequence[Node]) -> dict[str, Region]:
    # The regions of a loop are recorded anew with the types that its operands have here.
    regions = {name: value for name, value in node.attrs if isinstance(value, Region)}
    for name, region in regions.items():
        inputs = [
            make_node(ops.INPUT, (), dict(own.attrs), _as_given(own.type, operand.type))
            for own, operand in zip(region.graph.inputs, operands, strict=True)
        ]
        given = {each.attr("name"): trace.value(each) for each in inputs}
        outputs = tuple(value.node for value in replay(trace, region.graph, given))
        regions[name] = Region(Graph(name, tuple(inputs), outputs))
    return regions


def _as_given(own: Type, given: Type) -> Type:
    # The shape becomes unknown if it may change.
    shape = own.shape if own.shape == given.shape else UNKNOWN
    return Type(given.kind, given.dtype, shape)


@dataclass(frozen=True, slots=True, eq=False)
class CustomCall:
    """One call of a function inside a capture.

    Attributes:
        backward: `*cotangents, *names -> *gradients` of the inputs `wrt`.
        names: of the operands of its nodes, after the value.
        outputs: the values of the function's outputs.
        modes: how the cotangents of an input are combined, by name, if they are not added up.
        refused: by input name, the message for a derivative with respect to it.
    """

    backward: Graph
    cotangents: tuple[str, ...]
    names: tuple[str, ...]
    wrt: tuple[str, ...]
    outputs: tuple[Node, ...]
    modes: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    serial: int = field(default_factory=lambda: next(SERIALS))

    def __repr__(self) -> str:
        return f"<call {self.serial} of {self.backward.name}>"


def mark(trace: Trace, called: CustomCall, inputs: Sequence[Node]) -> list[Value]:
    """Return the outputs of a call; derivatives pass through its own backward."""
    nodes = [_call(called, position, inputs) for position in range(len(called.outputs))]
    return [trace.named(trace.value(node)) for node in nodes]


def _call(called: CustomCall, position: int, inputs: Sequence[Node]) -> Node:
    output = called.outputs[position]
    attrs = {"function": called, "position": position}
    return make_node(ops.CALL, (output, *inputs), attrs, output.type)


def passing_to(trace: Trace, before: Node, after: Node) -> Value:
    """Return the value of one node whose derivative is passed unchanged to another."""
    head = make_node(ops.INPUT, (), {"name": "grad_out"}, before.type)
    same = Graph("same", (head,), (head,))
    called = CustomCall(same, ("grad_out",), ("x",), ("x",), (after,))
    return mark(trace, called, [before])[0]


def drop_calls(graph: Graph) -> Graph:
    """Return the graph without its `call` nodes, those in regions included."""
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


def move_calls(before: Graph, after: Graph, given: Mapping[Node, Node]) -> Graph:
    """Return a graph with replaced nodes, its calls renewed to refer to the replacements."""
    calls = {node.attr("function") for node in before.nodes if node.op is ops.CALL}
    if not calls:
        return after
    moved = {}
    for called in calls:
        outputs = substitute(Graph("", (), called.outputs), given).outputs
        moved[called] = replace(called, outputs=outputs)

    def move(node: Node) -> Node:
        if node.op is not ops.CALL or node.attr("function") not in moved:
            return node
        attrs = {**dict(node.attrs), "function": moved[node.attr("function")]}
        return make_node(node.op, node.operands, attrs, node.type)

    return rebuild(after, move)


class Calls:
    """The calls of one graph being differentiated; a call pulls all its outputs at once."""

    def __init__(self, trace: Trace, order: Sequence[Node]) -> None:
        self.trace = trace
        self.nodes: dict[CustomCall, list[Node]] = {}
        for node in order:
            if node.op is ops.CALL:
                self.nodes.setdefault(node.attr("function"), []).append(node)

    def pull(
        self, node: Node, cotangents: Mapping[Node, Any], active: Collection[Node]
    ) -> list[Value | None]:
        """Return each operand's share, at the last of a call's nodes; None at the others.

        Raises:
            TraceError: a target reaches an input that has no derivative.
        """
        called: CustomCall = node.attr("function")
        nodes = self.nodes[called]
        shares: list[Value | None] = [None] * len(node.operands)
        # The walk is in reverse, so the first node comes last, when all cotangents are known.
        if node is not nodes[0]:
            return shares
        given: dict[str, Any] = {
            name: xp.zeros_like(self.trace.value(output))
            for name, output in zip(called.cotangents, called.outputs, strict=True)
        }
        known = {n.attr("position"): cotangents[n] for n in nodes if n in cotangents}
        if not known:
            return shares
        for name, operand in zip(called.names, node.operands[1:], strict=True):
            if name in called.refused and operand in active:
                message = called.refused[name]
                raise self.trace.error(f"takes a derivative that is not there: {message}")
        given.update({called.cotangents[position]: value for position, value in known.items()})
        given.update(
            zip(called.names, (self.trace.value(o) for o in node.operands[1:]), strict=True)
        )
        outputs = {
            position: self.trace.value(_call(called, position, node.operands[1:]))
            for _, position in marks(called.backward)
        }
        gradients = replay(self.trace, called.backward, given, outputs)
        by_name = dict(zip(called.wrt, gradients, strict=True))
        return [None, *(by_name.get(name) for name in called.names)]
