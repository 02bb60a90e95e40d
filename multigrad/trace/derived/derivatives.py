"""Reverse mode over a graph, from the VJP of each op, and calls that have a gradient of their own.

It gives the true derivative of a forward without a rule, and the oracle of the tests. The result is
a graph like any other: it can be lowered, shown and differentiated again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ...errors import UnsupportedOp
from ...graph import ops
from ...graph.ir.graph import (
    Graph,
    Node,
    Region,
    every_node,
    make_node,
    regions_in,
    regions_of,
    walk,
)
from ...graph.ir.types import FLOAT8, UNKNOWN, T, Type, is_float
from ...graph.ops.properties import CONSTANT, LINEAR, is_zero, spread
from ...graph.passes.facts import read_shapes_alone
from ...graph.passes.residuals import by_value, marks
from ...graph.passes.simplify import rebuild, simplify, substitute
from ...graph.support.class_bases import dataclass
from ...graph.support.threads import SERIALS
from ..coercion import cast_node
from ..trace import Trace, Value, apply
from ..xp import all as xp
from .scans import Scans

# --- calls of captured functions that have a gradient of their own -------------------------------
# Inside another capture the function's ops are part of the outer graph; a `call` node around each
# of its outputs says which backward a derivative passes through. Once derivatives are taken, the
# nodes are dropped.


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
    if {node.op for node in graph.nodes}.isdisjoint((ops.CALL, ops.WHILE_LOOP, ops.SCAN)):
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


class CapturedCalls:
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


# --- reverse mode --------------------------------------------------------------------------------


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
    given = {
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
    seeds = [(output, given[name]) for name, output in pairs if name is not None]
    gradients = accumulate_all(trace, seeds, targets)
    results = [
        xp.zeros_like(trace.value(target)) if gradient is None else gradient
        for target, gradient in zip(targets, gradients, strict=True)
    ]
    inputs = (*(value.node for value in given.values()), *forward.inputs)
    return Graph(trace.name, inputs, tuple(result.node for result in results), forward.locations)


def accumulate_all(
    trace: Trace,
    seeds: Sequence[tuple[Node, Value]],
    targets: Sequence[Node],
    modes: Modes | None = None,
) -> list[Value | None]:
    """Return the cotangent of each target, or None if no output depends on it.

    Args:
        seeds: outputs with their cotangents.
        targets: the nodes whose cotangents are returned.
        modes: how the cotangents of a node are combined, if they are not added up.
    """
    order = walk(output for output, _ in seeds)
    combined = Combined(trace, order, modes or {})
    cotangents: dict[Node, Any] = {}
    for output, cotangent in seeds:
        if output in combined.modes:
            combined.add(output, 0, output, cotangent)
            continue
        known = cotangents.get(output)
        cotangents[output] = cotangent if known is None else known + cotangent
    active = _depend_on(order, targets)
    calls, scans = CapturedCalls(trace, order), Scans(trace, order, accumulate_all)
    for node in reversed(order):
        # In reverse order every share of a node is known by now.
        if node in combined.modes and (one := combined.one(node)) is not None:
            cotangents[node] = one
        if node not in active or node.op is ops.INPUT:
            continue
        if node.op is ops.CALL:
            shares = calls.pull(node, cotangents, active)
        elif node.op is ops.SCAN:
            refuse_within(trace, node)
            shares = scans.pull(node, cotangents, active)
        elif node not in cotangents:
            continue
        elif node.op.vjp is None and node.op.made_of is not None:
            shares = _pull_parts(trace, node, cotangents[node])
        elif node.op.vjp is None:
            raise UnsupportedOp(f"{node.op.name} has no derivative")
        else:
            operands = [trace.value(operand) for operand in node.operands]
            shares = node.op.vjp(
                xp, cotangents[node], trace.value(node), *operands, **dict(node.attrs)
            )
        for position, (operand, share) in enumerate(zip(node.operands, shares, strict=True)):
            if share is None or operand not in active or not is_float(operand.type):
                continue
            if operand.type.dtype in FLOAT8:
                raise trace.error(
                    f"takes a derivative through {operand.type.dtype}, in which cotangents would "
                    "be rounded. Stop the gradient there, or give one of your own"
                )
            share = _match(trace, share, operand)
            if operand in combined.modes:
                combined.add(node, position, operand, share)
                continue
            known = cotangents.get(operand)
            cotangents[operand] = share if known is None else known + share
    return [cotangents.get(target) for target in targets]


def _pull_parts(trace: Trace, node: Node, cotangent: Any) -> list[Value | None]:
    # The VJP of an op made of others. It is pulled to copies of the operands, since one operand may
    # be made of another; no input of a graph has a name with a space.
    copies = [
        make_node(ops.INPUT, (), {"name": f"operand {next(SERIALS)}"}, operand.type)
        for operand in node.operands
    ]
    assert node.op.made_of is not None
    whole = node.op.made_of(xp, *map(trace.value, copies), **dict(node.attrs))
    shares = accumulate_all(trace, [(whole.node, cotangent)], copies)
    given = dict(zip(copies, node.operands, strict=True))
    found = [None if share is None else Graph("", (), (share.node,)) for share in shares]
    return [
        None if graph is None else trace.value(substitute(graph, given).outputs[0])
        for graph in found
    ]


def _depend_on(order: Sequence[Node], targets: Sequence[Node]) -> set[Node]:
    # Dependence by shape alone carries no derivative.
    active = set(targets)
    for node in order:
        if node.op is ops.STOP_GRADIENT:
            continue
        shapes = node.op.shape_only
        if any(o in active for i, o in enumerate(node.operands) if i not in shapes):
            active.add(node)
    return active


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
    given = {
        node: LINEAR if node.attr("name") in cotangents else CONSTANT
        for node in backward.nodes
        if node.op is ops.INPUT
    }
    degrees = spread(backward, given)
    for output in backward.outputs:
        if degrees[output] != LINEAR and not is_zero(output):
            lost = (node for node in backward.nodes if degrees[node] is None)
            return output if degrees[output] is not None else next(lost)
    return None


def tangent_map(
    backward: Graph,
    cotangents: Sequence[str] = ("grad_out",),
    tangents: Sequence[Node] = (),
    outputs: Sequence[Node] = (),
    noun: str = "rule",
) -> Graph:
    """Return the graph `*tangents, *inputs without cotangents -> tangents of the outputs`.

    It is the transpose of a backward, which must be linear: the VJP of a linear map is its
    transpose.

    Args:
        cotangents: the names of the backward's.
        tangents: an input for each gradient of the backward; by default one named "tangent".
        outputs: nodes with the shapes of the cotangents; a rule's has the tangent's.
        noun: names the backward in messages.

    Raises:
        UnsupportedOp: the backward is not linear in its cotangents.
    """
    together = cotangents[0] if len(cotangents) == 1 else "its cotangents"
    if not is_linear(backward, cotangents):
        raise UnsupportedOp(
            f"{noun} {backward.name!r} is not linear in {together}, so it has no forward mode; "
            "take its gradient by reverse mode"
        )
    trace = Trace(f"tangent of {backward.name}")
    given = [backward.input(name) for name in cotangents]
    if not tangents:
        assert given[0] is not None
        tangents = (make_node(ops.INPUT, (), {"name": "tangent"}, given[0].type),)
    if not outputs:
        outputs = tangents
    seeds = [
        (gradient, _in_dtype_of(trace.value(tangent), gradient))
        for gradient, tangent in zip(backward.outputs, tangents, strict=True)
    ]
    known = [node for node in given if node is not None]
    found = dict(zip(known, accumulate_all(trace, seeds, known), strict=True))
    results = []
    for node, output in zip(given, outputs, strict=True):
        share = None if node is None else found[node]
        zeros = xp.zeros_like(trace.value(output))
        results.append((zeros if share is None else _in_dtype_of(share, output)).node)
    rest = [node for node in backward.inputs if node not in known]
    inputs = dict.fromkeys((*tangents, *rest, *outputs))
    whole = Graph(trace.name, tuple(inputs), tuple(results), backward.locations)
    graph = simplify(read_shapes_alone(whole))
    if not by_value(graph.outputs).isdisjoint(known):
        raise UnsupportedOp(f"{noun} {backward.name!r}: the transpose of it reads {together}")
    alike = {n: output for n, output in zip(given, outputs, strict=True) if n is not None}
    return simplify(substitute(graph, alike))


def _in_dtype_of(value: Value, node: Node) -> Value:
    # The transpose of a cast that a framework makes on the way.
    dtype = node.type.dtype
    same = value.node.type.dtype == dtype or node.type.kind == "scalar"
    return value if same else value.trace.value(cast_node(value.node, dtype))


# --- cotangents that are combined otherwise than by a sum -----------------------------------------
Modes = Mapping[Node, str]


class Combined:
    """The cotangents of values that have a mode, while a derivative is taken."""

    def __init__(self, trace: Trace, order: Sequence[Node], declared: Modes) -> None:
        self.trace = trace
        self.modes = dict(declared)
        self.shares: dict[Node, list[tuple[tuple[int, int], Node, Any]]] = {}
        for node in order:
            if node.op is ops.CALL:
                self._declare(node)

    def _declare(self, node: Node) -> None:
        called: CustomCall = node.attr("function")
        for name, operand in zip(called.names, node.operands[1:], strict=True):
            mode = called.modes.get(name)
            if mode is None:
                continue
            if self.modes.setdefault(operand, mode) != mode:
                raise self._error(
                    operand, f"another use of it has accumulate={mode!r}", "Declare one way"
                )

    def add(self, node: Node, position: int, operand: Node, share: Value) -> None:
        """Take the share that a node adds to the cotangent of a value with a mode."""
        called = node.op is ops.CALL
        place = (node.attr("function").serial if called else -1, position)
        self.shares.setdefault(operand, []).append((place, node, share))

    def one(self, value: Node) -> Any:
        """Return the shares of a value combined by its mode, or None if there are none."""
        # Ordered by the calls' serials: the result does not depend on the order of the walk.
        shares = sorted(self.shares.get(value, ()), key=lambda share: share[0])
        if not shares:
            return None
        for _, node, _ in shares:
            if node.op is ops.SCAN or (len(shares) > 1 and node.op is not ops.CALL):
                self._refuse(value, node)
        _, _, found = shares[-1]
        if self.modes[value] == "max":
            for _, _, share in shares[:-1]:
                found = xp.maximum(found, share)
        return found

    def _refuse(self, value: Node, node: Node) -> None:
        if node.op is ops.SCAN:
            raise self._error(
                value,
                "a loop reads it, whose turns add up",
                "Write the turns out, or give the function around the loop a gradient of its own",
                node,
            )
        raise self._error(
            value,
            f"{node.op.name} reads it besides, whose share is a part of a sum",
            "Give each use of it a gradient of its own by xg.custom_gradient",
            node,
        )

    def _error(self, value: Node, problem: str, advice: str, node: Node | None = None) -> Exception:
        called = f"{dict(value.attrs)['name']!r}" if value.op is ops.INPUT else "a value"
        where = self.trace.source.locations.get(node) if node is not None else None
        return self.trace.error(
            f"has accumulate={self.modes[value]!r} for {called}, but {problem}. {advice}", where
        )


def refuse_within(trace: Trace, loop: Node) -> None:
    # A loop's turns add up, so a function with a mode for an argument cannot be called in one.
    for region in regions_of(loop):
        for node in every_node(region.graph):
            if node.op is ops.CALL and node.attr("function").modes:
                called = node.attr("function").backward.name
                raise trace.error(
                    f"calls {called!r}, which has accumulate=, in a loop, whose turns add up. "
                    "Write the turns out, or put the loop into that function"
                )
