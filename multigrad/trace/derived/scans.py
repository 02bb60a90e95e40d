"""The derivative of a scan: another scan, which takes the rows the other way.

A turn back is the VJP of a turn. A minimum cut chooses the values of the turn that it reads: a
forward scan returns them, stacked, besides its own results; rows and constants are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ...graph import ops
from ...graph.ir import questions
from ...graph.ir.graph import Graph, Node, Region, derive_node, make_node, walk
from ...graph.ir.types import BOOL, UNKNOWN, Type, is_float
from ...graph.ops.arrays.loops import key_of
from ...graph.passes.facts import drop_sums, find_alike, needed_shapes, shape_of_another
from ...graph.passes.residuals import INFINITE, minimum_cut
from ...graph.passes.simplify import simplify, substitute
from ...graph.support.class_bases import dataclass
from ..trace import NeedsConcrete, Trace, Value
from ..xp import all as xp

# (trace, outputs with their cotangents, targets) -> the targets' cotangents.
Accumulate = Callable[[Trace, Sequence[tuple[Node, Value]], Sequence[Node]], list[Value | None]]


class Scans:
    """The scans of one graph being differentiated; a scan pulls all its outputs at once."""

    def __init__(self, trace: Trace, order: Sequence[Node], accumulate: Accumulate) -> None:
        self.trace = trace
        self.accumulate = accumulate
        self.nodes: dict[Any, list[Node]] = {}
        for node in order:
            if node.op is ops.SCAN:
                self.nodes.setdefault(key_of(node), []).append(node)

    def pull(
        self, node: Node, cotangents: Mapping[Node, Any], active: Collection[Node]
    ) -> list[Value | None]:
        """Return each operand's share, at the last of a scan's nodes; None at the others."""
        nodes = self.nodes[key_of(node)]
        given = {n.attr("position"): cotangents[n] for n in nodes if n in cotangents}
        if node is not nodes[0] or not given:
            return [None] * len(node.operands)
        asked = [operand in active and is_tensor(operand) for operand in node.operands]
        return Turned(self.trace, node, given, asked).pull(self.accumulate)


def is_tensor(node: Node) -> bool:
    return node.type.kind == "tensor" and is_float(node.type)


# The cost of keeping an element: a row is there but is held for backward; a constant is kept once.
FLOAT, ROW, MASK, FREE = 64, 16, 16, 0


@dataclass(frozen=True, slots=True, eq=False)
class Back:
    """The VJP of a turn.

    Attributes:
        results: the gradients of what moves: the carry, sums of constants, rows.
        heads: the cotangents that it takes, by the position of a result of the turn.
        sums: the gradients of constants accumulated by the turns before, by position.
        order: the position that each result is the gradient of.
    """

    results: Graph
    heads: Mapping[int, Value]
    sums: Mapping[int, Value]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Turned:
    """A scan with the cotangents of its results.

    Attributes:
        node: one of the scan's.
        given: cotangents by the position of a result.
        asked: for each operand, whether its cotangent is needed.
    """

    trace: Trace
    node: Node
    given: Mapping[int, Value]
    asked: Sequence[bool]

    @property
    def body(self) -> Graph:
        return self.node.attr("body").graph

    def pull(self, accumulate: Accumulate) -> list[Value | None]:
        inputs, first = self.body.inputs, self.node.attr("carried")
        last = first + self.node.attr("rows")
        back = self._turn_back(accumulate)
        kept, results = self._keep(back)
        read = set(walk(results.outputs))
        own_rows = [i for i in range(first, last) if inputs[i] in read]
        if not (own_rows or kept or any(i >= first for i in back.heads)):
            own_rows = [first]  # a scan needs at least one row, for its length
        # The order of `values` is that of a scan's operands: carry, rows, constants.
        values: dict[Node, Node] = {
            head.node: self._start(i, self.given.get(i))
            for i, head in back.heads.items()
            if i < first
        }
        values |= {total.node: self._start(i, None) for i, total in back.sums.items()}
        carried = len(values)
        values |= {h.node: self.given[i].node for i, h in back.heads.items() if i >= first}
        values |= {inputs[i]: self.node.operands[i] for i in own_rows}
        values |= dict(zip(kept.values(), self._histories([*kept]), strict=True))
        rows = len(values) - carried
        constants = [i for i in range(last, len(inputs)) if inputs[i] in read]
        values |= {inputs[i]: self.node.operands[i] for i in constants}
        body = simplify(Graph("body", tuple(values), results.outputs, results.locations))
        reverse = not self.node.attr("reverse")
        attrs = {**dict(self.node.attrs), "body": Region(body), "reverse": reverse}
        attrs |= {"carried": carried, "rows": rows}
        gradients = scan_values(self.trace, tuple(values.values()), attrs, self.node)
        found = dict(zip(back.order, gradients, strict=True))
        return [found.get(i) if asked else None for i, asked in enumerate(self.asked)]

    def _turn_back(self, accumulate: Accumulate) -> Back:
        inputs, outputs, first = self.body.inputs, self.body.outputs, self.node.attr("carried")
        last = first + self.node.attr("rows")
        moving, trace = self._moving(), self._trace()
        heads = {
            # Only a result that moves, or whose cotangent is known, gets a head.
            i: trace.input(self._name("cotangent", i), self._type_of(i))
            for i, output in enumerate(outputs)
            if is_tensor(output) and (moving[i] if i < first else i in self.given)
        }
        targets = [i for i, moves in enumerate(moving) if moves]
        seeds = [(outputs[i], head) for i, head in heads.items()]
        given = {own.attr("name"): operand for own, operand, _ in self._operands()}
        with asked_of(given):
            found = accumulate(trace, seeds, [inputs[i] for i in targets])
        shares = {
            i: xp.zeros_like(trace.value(inputs[i])) if share is None else share
            for i, share in zip(targets, found, strict=True)
            if share is not None or i < first
        }
        targets = [*shares]
        sums = {i: trace.input(self._name("sum", i), inputs[i].type) for i in targets if i >= last}
        shares |= {i: total + shares[i] for i, total in sums.items()}
        order = [*(i for i in targets if i < first), *sums]
        order += [i for i in targets if first <= i < last]
        nodes = tuple(shares[i].node for i in order)
        return Back(Graph("body", (), nodes, trace.source.locations), heads, sums, tuple(order))

    def _keep(self, back: Back) -> tuple[dict[Node, Node], Graph]:
        """Return the nodes that a turn keeps, with their inputs in the turn back, and its graph."""
        body, first = self.body, self.node.attr("carried")
        alike = find_alike(body, first)
        for i, head in back.heads.items():
            if body.outputs[i] in alike:
                alike[head.node] = alike[body.outputs[i]]
        of_carries = {alike[h.node]: h.node for i, h in back.heads.items() if i < first}
        plain, known = drop_sums(back.results, alike)
        plain = shape_of_another(plain, known, of_carries)
        later = {value.node for value in (*back.heads.values(), *back.sums.values())}
        costs = self._costs(plain, known, later)
        read = [
            *plain.outputs,
            *(
                operand
                for node in plain.nodes
                if node in later
                for i, operand in enumerate(node.operands)
                if i not in node.op.shape_only or operand not in body.inputs
            ),
        ]
        needed = [*dict.fromkeys(node for node in read if node in costs)]
        chosen = [n for n in minimum_cut(costs, needed) if n not in body.inputs[first:]]
        kept = {
            node: make_node(ops.INPUT, (), {"name": self._name("kept", i)}, node.type)
            for i, node in enumerate(chosen)
        }
        return kept, substitute(plain, kept)

    def _costs(self, graph: Graph, alike: Mapping[Node, int], later: set[Node]) -> dict[Node, int]:
        """Return the cost of keeping each node of a turn's VJP that the forward turn computes.

        Nodes that are not known before the turn back are added to `later`.
        """
        inputs, first = self.body.inputs, self.node.attr("carried")
        last = first + self.node.attr("rows")
        costs: dict[Node, int] = {}
        for node in graph.nodes:
            if node in later or not later.isdisjoint(node.operands):
                later.add(node)
            elif node in inputs:
                place = inputs.index(node)
                costs[node] = FREE if place >= last else ROW if place >= first else FLOAT
            elif not costs.keys().isdisjoint(node.operands):
                is_small = node.type.dtype == BOOL and node in alike
                is_float = is_tensor(node) and node in alike
                cost = MASK if is_small else FLOAT - 1 if is_float else INFINITE
                # FLOAT - 1: at equal cost a computed float is preferred to the carry before it.
                costs[node] = INFINITE if self.node.attr("recompute") else cost
        return costs

    def _moving(self) -> list[bool]:
        # A fixed point: a carry moves if the result that becomes it depends on a moving input.
        inputs, outputs = self.body.inputs, self.body.outputs
        moving = [*self.asked]
        while True:
            reached = {node for node, moves in zip(inputs, moving, strict=True) if moves}
            for node in self.body.nodes:
                shapes = node.op.shape_only
                if any(o in reached for i, o in enumerate(node.operands) if i not in shapes):
                    reached.add(node)
            more = [
                i < self.node.attr("carried") and outputs[i] in reached and is_tensor(inputs[i])
                for i in range(len(inputs))
            ]
            joined = [a or b for a, b in zip(moving, more, strict=True)]
            if joined == moving:
                return moving
            moving = joined

    def _name(self, word: str, i: int) -> str:
        # Unique among the names of a turn: the derivative of a derivative has such words too.
        taken = {node.attr("name") for node in self.body.inputs}
        name = f"{word}_{i}"
        while name in taken:
            name = f"{word}_{name}"
        return name

    def _type_of(self, i: int) -> Type:
        if i >= self.node.attr("carried"):
            return self.body.outputs[i].type
        own = self.body.inputs[i].type
        given = self.given.get(i)
        is_alike = given is None or given.node.type.shape == own.shape
        return own if is_alike else Type(own.kind, own.dtype, UNKNOWN)

    def _start(self, i: int, cotangent: Value | None) -> Node:
        # The cotangent of a carry before the first turn back is that of its value after the last
        # turn.
        value = self.trace.value(self.node.operands[i])
        return (xp.zeros_like(value) if cotangent is None else cotangent).node

    def _histories(self, nodes: Sequence[Node]) -> list[Node]:
        if not nodes:
            return []
        body = self.body
        region = Region(Graph(body.name, body.inputs, (*body.outputs, *nodes), body.locations))
        attrs = {**dict(self.node.attrs), "body": region}
        found = scan_values(self.trace, self.node.operands, attrs, self.node)
        return [value.node for value in found[len(body.outputs) :]]

    def _trace(self) -> Trace:
        # A trace of a turn in which the known shapes of the operands, or of their rows, are facts.
        trace = Trace(self.body.name, self.trace.facts, kind=self.trace.kind)
        for own, operand, is_row in self._operands():
            shape = self.trace.shapes.known(operand) if operand.type.kind == "tensor" else None
            if shape is not None:
                name = own.attr("name")
                shape = shape[1:] if is_row else shape
                trace.facts.update({f"shape:{name}": shape, f"ndim:{name}": len(shape)})
        return trace

    def _operands(self) -> Iterator[tuple[Node, Node, bool]]:
        """Yield the inputs of a turn, each with its operand and whether it is a row of that."""
        first = self.node.attr("carried")
        rows = range(first, first + self.node.attr("rows"))
        for i, (own, operand) in enumerate(zip(self.body.inputs, self.node.operands, strict=True)):
            yield own, operand, i in rows


@contextmanager
def asked_of(operands: Mapping[str, Node]) -> Iterator[None]:
    """Turn questions about a region's inputs into questions about the operands given for them."""
    asked = questions.count()
    try:
        yield
    except NeedsConcrete as need:
        questions.forget(asked)  # no call could tell a fact about these inputs
        facts: list[str] = []
        for fact in need.facts:
            operand = operands.get(fact.partition(":")[2])
            facts += (fact,) if operand is None else needed_shapes(operand)
        raise NeedsConcrete(*facts) from None


def scan_values(
    trace: Trace, operands: Sequence[Node], attrs: Mapping[str, Any], like: Node | None = None
) -> list[Value]:
    """Return all results of a scan, placed in the source like another's if `like` is given."""
    where = trace.source.location() if like is None else trace.source.locations.get(like)
    found = []
    for position in range(len(attrs["body"].graph.outputs)):
        node = derive_node(ops.SCAN, operands, {**attrs, "position": position})
        if where is not None:
            trace.source.locations.setdefault(node, where)
        found.append(trace.value(node))
    return found
