"""The derivative of a scan: another scan, which takes the rows the other way.

A turn is a graph, and so is a turn back. What they take, in a scan's order, and what they give:

    turn         carry c | row r of each scanned tensor | constants k   ->   next c | row of y
    turn back    ct of next c, sums of ct of k | ct of row of y, r, kept values | k
                 ->   ct of c, sums with this turn's share | ct of r

The turn back is the VJP of the turn (`_differentiate_turn`), which reads values that the turn
computed. A minimum cut chooses which of them are kept (`_choose_kept`): the forward scan returns
those too, stacked. The others are computed again, from them, from rows and from constants.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ....core import ops
from ....core.ir import questions
from ....core.ir.graph import Graph, Node, Region, dependents, derive_node, make_node, walk
from ....core.ir.op import BOOL, UNKNOWN, Op, Type, is_float
from ....core.lowering.derivatives import accumulate_all
from ....core.passes.residuals import INFINITE, minimum_cut
from ....core.passes.simplify import simplify, substitute
from ....core.support.records import record
from ....core.trace.trace import NeedsConcrete, Trace, Value
from ....core.trace.xp import all as xp
from ...passes.shapes import needed_shapes
from ...passes.turns import drop_sums, find_alike, shape_of_another

# The costs of keeping an element of a value of each turn. A row of a scanned tensor, and a
# constant, are there: the one is then held until backward, the other costs nothing.
CARRIED, ROW, CONSTANT = 64, 16, 0
FLOAT = CARRIED - 1  # at equal cost a computed float is preferred to the carry before it
MASK = 16  # a computed bool: one byte for a float's four


def pull_scan(
    trace: Trace, node: Node, cotangents: Mapping[int, Value], active: Collection[Node]
) -> list[Value | None]:
    """Return the share of each operand of a scan.

    Args:
        cotangents: those of its results that are known, by position.
        active: the nodes that depend on what the derivative is taken with respect to.
    """
    wanted = [operand in active and is_tensor(operand) for operand in node.operands]
    return TurnedScan(trace, node, cotangents, wanted).pull()


def is_tensor(node: Node) -> bool:
    return node.type.kind == "tensor" and is_float(node.type)


@record()
class TurnBack:
    """The VJP of a turn.

    Attributes:
        gradients: its results, in the order of a scan's: what is carried, then rows.
        positions: for each of them, the input of the turn that it is the gradient of.
        cotangents: its inputs for the cotangents of the turn's results, by their position.
        sums: its inputs for the gradients of constants summed over the turns so far, by position.
    """

    gradients: Graph
    positions: tuple[int, ...]
    cotangents: Mapping[int, Value]
    sums: Mapping[int, Value]


@record()
class TurnedScan:
    """A scan with the cotangents of its results, about to be differentiated.

    Attributes:
        node: one of the scan's.
        known: cotangents by the position of a result.
        wanted: for each operand, whether its cotangent is needed.
    """

    trace: Trace
    node: Node
    known: Mapping[int, Value]
    wanted: Sequence[bool]

    @property
    def turn(self) -> Graph:
        return self.node.attr("body").graph

    # The positions of a turn's inputs, which are those of the scan's operands.
    @property
    def carried(self) -> range:
        return range(self.node.attr("carried"))

    @property
    def rows(self) -> range:
        start = self.node.attr("carried")
        return range(start, start + self.node.attr("rows"))

    @property
    def constants(self) -> range:
        return range(self.rows.stop, len(self.turn.inputs))

    def pull(self) -> list[Value | None]:
        """Return the cotangent of each operand, of one scan for all; None: it has none."""
        inputs, operands, carried = self.turn.inputs, self.node.operands, self.carried
        turn_back = self._differentiate_turn()
        kept, gradients = self._choose_kept(turn_back)
        read = set(walk(gradients.outputs))
        read_rows = [i for i in self.rows if inputs[i] in read]
        if not (read_rows or kept or any(i not in carried for i in turn_back.cotangents)):
            read_rows = [self.rows.start]  # a scan needs at least one row, for its length
        # The inputs of the turn back with the operands of the scan back, in a scan's order.
        of_carried: dict[Node, Node] = {
            cotangent.node: self._start(i, self.known.get(i))
            for i, cotangent in turn_back.cotangents.items()
            if i in carried
        }
        of_carried |= {total.node: self._start(i, None) for i, total in turn_back.sums.items()}
        of_rows = {
            cotangent.node: self.known[i].node
            for i, cotangent in turn_back.cotangents.items()
            if i not in carried
        }
        of_rows |= {inputs[i]: operands[i] for i in read_rows}
        of_rows |= dict(zip(kept.values(), self._histories([*kept]), strict=True))
        of_constants = {inputs[i]: operands[i] for i in self.constants if inputs[i] in read}
        values = {**of_carried, **of_rows, **of_constants}
        body = simplify(Graph("body", tuple(values), gradients.outputs, gradients.locations))
        attrs = {
            **dict(self.node.attrs),
            "body": Region(body),
            "reverse": not self.node.attr("reverse"),
            "carried": len(of_carried),
            "rows": len(of_rows),
        }
        results = loop_values(self.trace, ops.SCAN, tuple(values.values()), attrs, self.node)
        by_position = dict(zip(turn_back.positions, results, strict=True))
        return [by_position.get(i) if takes else None for i, takes in enumerate(self.wanted)]

    def _start(self, i: int, cotangent: Value | None) -> Node:
        # What a carried value of the scan back is before its first turn: the cotangent of the carry
        # after the last turn.
        value = self.trace.value(self.node.operands[i])
        return (xp.zeros_like(value) if cotangent is None else cotangent).node

    def _histories(self, nodes: Sequence[Node]) -> list[Node]:
        # Values of the turn, stacked by the forward scan, which now has these results besides.
        if not nodes:
            return []
        turn = self.turn
        region = Region(Graph(turn.name, turn.inputs, (*turn.outputs, *nodes), turn.locations))
        attrs = {**dict(self.node.attrs), "body": region}
        results = loop_values(self.trace, ops.SCAN, self.node.operands, attrs, self.node)
        return [value.node for value in results[len(turn.outputs) :]]

    # --- the VJP of a turn ------------------------------------------------------------------------
    def _differentiate_turn(self) -> TurnBack:
        inputs, outputs, carried = self.turn.inputs, self.turn.outputs, self.carried
        moving, trace = self._moving(), self._trace_of_turn()
        cotangents = {
            # Only of a result that moves, or whose cotangent is known.
            i: trace.input(self._free_name("cotangent", i), self._type_of_cotangent(i))
            for i, output in enumerate(outputs)
            if is_tensor(output) and (moving[i] if i in carried else i in self.known)
        }
        targets = [i for i, is_moving in enumerate(moving) if is_moving]
        seeds = [(outputs[i], cotangent) for i, cotangent in cotangents.items()]
        operands = {input_node.attr("name"): operand for input_node, operand, _ in self._inputs()}
        with asked_of(operands):
            gradients_of_targets = accumulate_all(trace, seeds, [inputs[i] for i in targets])
        # A carry on which nothing depends in this turn still has a cotangent in the next: zero.
        shares = {
            i: xp.zeros_like(trace.value(inputs[i])) if share is None else share
            for i, share in zip(targets, gradients_of_targets, strict=True)
            if share is not None or i in carried
        }
        sums = {
            i: trace.input(self._free_name("sum", i), inputs[i].type)
            for i in shares
            if i in self.constants
        }
        shares |= {i: total + shares[i] for i, total in sums.items()}
        positions = [i for i in shares if i in carried]
        positions += [*sums, *(i for i in shares if i in self.rows)]
        nodes = tuple(shares[i].node for i in positions)
        gradients = Graph("body", (), nodes, trace.source.locations)
        return TurnBack(gradients, tuple(positions), cotangents, sums)

    def _moving(self) -> list[bool]:
        # For each input whether it gets a cotangent: if one is wanted, and every carry on the way.
        # A fixed point: a carry moves if the result that becomes it depends on a moving input.
        inputs, outputs = self.turn.inputs, self.turn.outputs
        moving = [*self.wanted]
        while True:
            sources = [node for node, is_moving in zip(inputs, moving, strict=True) if is_moving]
            reached = dependents(self.turn.nodes, sources, by_value=True)
            by_carry = [
                i in self.carried and outputs[i] in reached and is_tensor(inputs[i])
                for i in range(len(inputs))
            ]
            either = [a or b for a, b in zip(moving, by_carry, strict=True)]
            if either == moving:
                return moving
            moving = either

    def _free_name(self, word: str, i: int) -> str:
        # Unique among the names of a turn: the derivative of a derivative has such words too.
        names = {node.attr("name") for node in self.turn.inputs}
        name = f"{word}_{i}"
        while name in names:
            name = f"{word}_{name}"
        return name

    def _type_of_cotangent(self, i: int) -> Type:
        if i not in self.carried:
            return self.turn.outputs[i].type
        type_ = self.turn.inputs[i].type
        known = self.known.get(i)
        is_same_shape = known is None or known.node.type.shape == type_.shape
        return type_ if is_same_shape else Type(type_.kind, type_.dtype, UNKNOWN)

    def _trace_of_turn(self) -> Trace:
        # A trace of a turn in which the known shapes of the operands, or of their rows, are facts.
        trace = Trace(self.turn.name, self.trace.facts, kind=self.trace.kind)
        for input_node, operand, is_row in self._inputs():
            shape = self.trace.shapes.known(operand) if operand.type.kind == "tensor" else None
            if shape is not None:
                name = input_node.attr("name")
                shape = shape[1:] if is_row else shape
                trace.facts.update({f"shape:{name}": shape, f"ndim:{name}": len(shape)})
        return trace

    def _inputs(self) -> Iterator[tuple[Node, Node, bool]]:
        """Yield the inputs of a turn, each with its operand and whether it is a row of that."""
        pairs = zip(self.turn.inputs, self.node.operands, strict=True)
        for i, (input_node, operand) in enumerate(pairs):
            yield input_node, operand, i in self.rows

    # --- which values of a turn are kept ----------------------------------------------------------
    def _choose_kept(self, turn_back: TurnBack) -> tuple[dict[Node, Node], Graph]:
        """Return the values that a turn keeps, each with the input of the turn back that stands
        for it, and the graph of the gradients that reads those inputs.
        """
        turn = self.turn
        gradients, shapes = self._without_changes_of_shape(turn_back)
        cotangents = (*turn_back.cotangents.values(), *turn_back.sums.values())
        backward_only = dependents(gradients.nodes, [value.node for value in cotangents])
        costs = self._costs(gradients, shapes, backward_only)
        # The values that the rest of the turn back reads, and not just for their shape.
        read = [*gradients.outputs]
        for node in gradients.nodes:
            if node in backward_only:
                shape_only = node.op.shape_only
                for i, operand in enumerate(node.operands):
                    if i not in shape_only or operand not in turn.inputs:
                        read.append(operand)
        values = [*dict.fromkeys(node for node in read if node in costs)]
        # Rows and constants are there anyway.
        free_nodes = turn.inputs[self.rows.start :]
        nodes = [node for node in minimum_cut(costs, values) if node not in free_nodes]
        kept = {
            node: make_node(ops.INPUT, (), {"name": self._free_name("kept", i)}, node.type)
            for i, node in enumerate(nodes)
        }
        return kept, substitute(gradients, kept)

    def _without_changes_of_shape(self, turn_back: TurnBack) -> tuple[Graph, dict[Node, int]]:
        """Return the gradients without sums and broadcasts to the shape that a value has already.

        Also return for each node whose shape is that of a carry the position of the first such
        carry. Where only the shape of such a value is read, it is read off the cotangent of a
        carry, so that the value need not be kept.
        """
        turn, carried = self.turn, self.carried
        shapes = find_alike(turn, len(carried))
        for i, cotangent in turn_back.cotangents.items():
            if turn.outputs[i] in shapes:
                shapes[cotangent.node] = shapes[turn.outputs[i]]
        of_carries = {
            shapes[cotangent.node]: cotangent.node
            for i, cotangent in turn_back.cotangents.items()
            if i in carried
        }
        gradients, shapes = drop_sums(turn_back.gradients, shapes)
        return shape_of_another(gradients, shapes, of_carries), shapes

    def _costs(
        self, gradients: Graph, shapes: Mapping[Node, int], backward_only: Collection[Node]
    ) -> dict[Node, int]:
        """Return the cost of keeping each node of a turn's VJP that the turn itself computes.

        A computed value has one only if its size is known, which is that of a carry.
        """
        inputs = self.turn.inputs
        costs: dict[Node, int] = {}
        for node in gradients.nodes:
            if node in backward_only:
                continue
            if node in inputs:
                i = inputs.index(node)
                costs[node] = CARRIED if i in self.carried else ROW if i in self.rows else CONSTANT
            elif not costs.keys().isdisjoint(node.operands):
                costs[node] = INFINITE
                if node in shapes and not self.node.attr("recompute"):
                    if node.type.dtype == BOOL:
                        costs[node] = MASK
                    elif is_tensor(node):
                        costs[node] = FLOAT
        return costs


@contextmanager
def asked_of(operands: Mapping[str, Node]) -> Iterator[None]:
    """Turn questions about a region's inputs into questions about the operands given for them."""
    count = questions.count()
    try:
        yield
    except NeedsConcrete as need:
        questions.forget(count)  # no call could tell a fact about these inputs
        facts: list[str] = []
        for fact in need.facts:
            operand = operands.get(fact.partition(":")[2])
            facts += (fact,) if operand is None else needed_shapes(operand)
        raise NeedsConcrete(*facts) from None


def loop_values(
    trace: Trace,
    op: Op,
    operands: Sequence[Node],
    attrs: Mapping[str, Any],
    like: Node | None = None,
) -> list[Value]:
    """Return all results of a loop, placed in the source like another's if `like` is given."""
    place = trace.source.location() if like is None else trace.source.locations.get(like)
    values = []
    for position in range(len(attrs["body"].graph.outputs)):
        node = derive_node(op, operands, {**attrs, "position": position})
        if place is not None:
            trace.source.locations.setdefault(node, place)
        values.append(trace.value(node))
    return values
