"""Python loops that a capture has unrolled, turned back into one `scan`: `xg.Capture(rolls=True)`.

A repeated run of nodes is found by its ops. It is a loop if each operand has one role in all turns:
a node of the same turn, of the turn before, a tensor from around the loop, or the next element of
one along an axis:

    for t in range(9):            turns: (MUL, GETITEM, ADD) nine times
        h = h * w + x[t]          carried: h, by the place of ADD in a turn; around the loop: w
                                  rows: x[t], a `RowRead` of x[0:9]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...graph import ops
from ...graph.ir.graph import Graph, Node, walk
from ...graph.ops.arrays.indexing import as_index
from ...graph.passes.facts import needed_shapes
from ...graph.passes.simplify import substitute
from ...trace.derived.custom_calls import renew_calls
from ...trace.trace import NeedsConcrete, Trace, Value, lift
from ...trace.xp import all as xp
from .control_flow import Tensors, record_scan

# Runs that are shorter, or have fewer turns, stay unrolled.
LEAST_NODES, LEAST_TURNS, MOST_IN_A_TURN, MOST_LOOPS = 64, 4, 512, 16
Index = tuple[Any, ...]
Turns = list[tuple[Node, ...]]


def roll(trace: Trace, values: Sequence[Value]) -> list[Value]:
    """Return values, computed by scans where similar turns of a loop compute them.

    Raises:
        NeedsConcrete: it must be known whether a turn keeps the shapes of its carry.
    """
    nodes = tuple(value.node for value in values)
    excluded: set[Node] = set()
    for _ in range(MOST_LOOPS):
        turns = _find_run(trace, nodes, excluded)
        if turns is None:
            break
        loop = _read_loop(trace, turns) or _read_loop(trace, turns[1:])  # the first may differ
        if loop is not None and loop.keeps_shapes():
            nodes = loop.replaced(nodes)
        else:
            excluded.update(turns[0])
    return [trace.value(node) for node in nodes]


def _find_run(trace: Trace, outputs: Sequence[Node], excluded: set[Node]) -> Turns | None:
    """Return the longest repeated run of ops, of the shortest period, without the nodes that are
    left; None if there is none.
    """
    # The sequence of kinds is compared with itself, shifted by each period: O(n * MOST_IN_A_TURN).
    order = [node for node in _in_order(trace, outputs) if node not in excluded]
    if len(order) < LEAST_NODES:
        return None
    kind_numbers: dict[Any, int] = {}
    kinds = np.array([kind_numbers.setdefault(_kind_of(node), len(kind_numbers)) for node in order])
    best_length, run = 0, None
    for period in range(1, min(len(order) // LEAST_TURNS, MOST_IN_A_TURN) + 1):
        start, length = _longest_run(kinds[:-period] == kinds[period:])
        turns = (length + period) // period
        if turns >= LEAST_TURNS and turns * period > best_length and turns * period >= LEAST_NODES:
            best_length, run = turns * period, (start, period, turns)
    if run is None:
        return None
    start, period, turns = run
    places = range(start, start + turns * period, period)
    return [tuple(order[i : i + period]) for i in places]


def _in_order(trace: Trace, outputs: Sequence[Node]) -> list[Node]:
    """Return the nodes in the order of recording; one without a line, as a call, follows its
    operands.
    """
    lines = {node: i for i, node in enumerate(trace.source.locations)}
    keys: dict[Node, tuple[int, int]] = {}
    for node in walk(outputs):
        if node.operands:
            line, distance = max((keys.get(o, (-1, 0)) for o in node.operands), default=(-1, 0))
            place = lines.get(node, -1)
            keys[node] = (place, 0) if place > line else (line, distance + 1)
    return sorted(keys, key=keys.__getitem__)


def _longest_run(alike: Any) -> tuple[int, int]:
    """Return where the longest run of True begins, and its length."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], alike.astype(np.int8), [0]])))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]  # a run begins at one edge and ends before the next
    i = int(np.argmax(lengths))
    return int(edges[2 * i]), int(lengths[i])


def _kind_of(node: Node) -> Any:
    """Return a key that is equal for corresponding nodes of two turns: integer indices and called
    functions differ by turn.
    """
    type_ = node.type
    attrs: Iterable[Any] = node.attrs
    if node.op is ops.CALL:
        function = node.attr("function")
        attrs = (id(function.backward), function.wrt, node.attr("position"))
    elif node.op is ops.GETITEM:
        attrs = ["#" if type(i) is int else repr(i) for i in node.attr("index")]
    return node.op, type_.kind, type_.dtype, len(node.operands), tuple(attrs)


@dataclass(frozen=True, slots=True, eq=False)
class RowRead:
    """What a turn reads of a tensor: an element along an axis, one step further at each turn.

    Attributes:
        index: selects the elements of all turns, in their order.
        axis: the axis of the selection along which the turns go.
    """

    source: Node
    index: Index
    axis: int

    def stacked(self, trace: Trace) -> Value:
        """Return the elements of all turns along the first axis."""
        source: Any = trace.value(self.source)
        rows = source[as_index(self.index)]
        return xp.moveaxis(rows, self.axis, 0) if self.axis else rows


def _row_of(nodes: Sequence[Node]) -> RowRead | None:
    """Return the rows that these nodes, one of each turn, read from one tensor; None if they are
    not equally spaced.
    """
    if any(n.op is not ops.GETITEM or n.operands != nodes[0].operands for n in nodes):
        return None
    indices = [node.attr("index") for node in nodes]
    places = [i for i, items in enumerate(zip(*indices, strict=True)) if len({*items}) > 1]
    if len(places) != 1:
        return None
    (place,) = places
    numbers = [index[place] for index in indices]
    items_before = indices[0][:place]
    if "..." in items_before or any(type(n) is not int for n in numbers):
        return None
    start, step, last = numbers[0], numbers[1] - numbers[0], numbers[-1]
    if step == 0 or any(n != start + t * step for t, n in enumerate(numbers)):
        return None
    stop = last + (1 if step > 0 else -1)
    is_end = (last, step > 0) in ((-1, True), (0, False))  # there `stop` means the other end
    slice_of_turns = (start, None if is_end else stop, step)
    index = (*items_before, slice_of_turns, *indices[0][place + 1 :])
    return RowRead(nodes[0].operands[0], index, sum(type(item) is not int for item in items_before))


@dataclass(slots=True, eq=False)
class Loop:
    """The similar turns of a loop.

    Attributes:
        turns: their nodes, in corresponding order.
        carried: the node that precedes the first turn, by its place in a turn.
        rows: what is another element at each turn, by its nodes.
    """

    trace: Trace
    turns: Turns
    carried: dict[int, Node] = field(default_factory=dict)
    rows: dict[tuple[Node, ...], RowRead] = field(default_factory=dict)

    def keeps_shapes(self) -> bool:
        """Return whether all turns have the dtypes and shapes of the first, which must be known."""
        columns = [
            [*([self.carried[i]] if i in self.carried else []), *column]
            for i, column in enumerate(zip(*self.turns, strict=True))
        ]
        kinds = [{(node.type.kind, node.type.dtype) for node in column} for column in columns]
        if any(len(each) > 1 for each in kinds):
            return False
        columns = [column for column in columns if column[0].type.kind == "tensor"]
        shape_of = self.trace.shapes.known
        unknown = [node for column in columns for node in column if shape_of(node) is None]
        if unknown and (facts := {*needed_shapes(unknown[-1])} - self.trace.facts.keys()):
            raise NeedsConcrete(*sorted(facts))
        shapes = [{shape_of(node) for node in column} for column in columns]
        return all(len(each) == 1 and None not in each for each in shapes)

    def replaced(self, outputs: Sequence[Node]) -> tuple[Node, ...]:
        """Return outputs that a scan computes."""
        trace, last = self.trace, len(self.turns) - 1
        place = _places_in_turns(self.turns)
        around = [node for node in walk(outputs) if node not in place]
        uses = {*outputs, *(operand for node in around for operand in node.operands)} & place.keys()
        carried = [*self.carried]
        # A result of an earlier turn that is read from outside must be stacked by the scan.
        outer = sorted({i for t, i in map(place.__getitem__, uses) if t < last or i not in carried})
        first_turn, second_turn = self.turns[:2]

        def turn(state: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
            symbols = dict(zip([first_turn[i] for i in carried], state, strict=True))
            row_nodes = zip([column[1] for column in self.rows], rows, strict=False)
            nodes = _with_replaced(
                trace, [second_turn[i] for i in (*carried, *outer)], {**symbols, **dict(row_nodes)}
            )
            results = [trace.value(node) for node in nodes]
            return results[: len(carried)], results[len(carried) :]

        initial = [trace.value(node) for node in self.carried.values()]
        rows = [row.stacked(trace) for row in self.rows.values()]
        if not rows:  # a scan needs rows to count its turns
            rows = [trace.value(lift(trace, np.arange(last + 1, dtype=np.int32)))]
        results = record_scan(trace, initial, rows, turn)
        final_carry = dict(zip(carried, results, strict=False))
        stacks: dict[int, Any] = dict(zip(outer, results[len(carried) :], strict=True))
        replacements: dict[Node, Value] = {}
        for node in uses:
            t, i = place[node]
            replacements[node] = final_carry[i] if t == last and i in final_carry else stacks[i][t]
        whole_stacks: dict[Node, Value] = {}
        for node in around:
            stack = self._stack_of_all_turns(node, stacks, place) if node.op is ops.STACK else None
            if stack is not None:
                whole_stacks[node] = stack
        return _with_replaced(trace, _with_replaced(trace, outputs, whole_stacks), replacements)

    def _stack_of_all_turns(
        self, node: Node, stacks: Mapping[int, Any], place: Mapping[Node, tuple[int, int]]
    ) -> Value | None:
        # A stack of what all turns give is the scan's own stacked result; None if it is not one.
        places = [place.get(operand) for operand in node.operands]
        axis, value = node.attr("axis"), self.trace.value
        for i, stack in stacks.items():
            all_turns = [(t, i) for t in range(len(self.turns))]
            start = places.index(all_turns[0]) if all_turns[0] in places else len(places)
            end = start + len(all_turns)
            if places[start:end] != all_turns:
                continue
            neighbors = (node.operands[:start], node.operands[end:])
            parts = [xp.stack([*map(value, each)], axis) if each else None for each in neighbors]
            joined = [parts[0], xp.moveaxis(stack, 0, axis) if axis else stack, parts[1]]
            joined = [each for each in joined if each is not None]
            return xp.concat(joined, axis) if len(joined) > 1 else joined[0]
        return None


def _places_in_turns(turns: Turns) -> dict[Node, tuple[int, int]]:
    return {node: (t, i) for t, turn in enumerate(turns) for i, node in enumerate(turn)}


def _read_loop(trace: Trace, turns: Turns) -> Loop | None:
    """Return the loop of turns, or None if they do not read alike."""
    if len(turns) < LEAST_TURNS:
        return None
    loop, place = Loop(trace, turns), _places_in_turns(turns)
    nodes_outside: set[Node] = set()
    for column in zip(*turns, strict=True):
        if len({node.attrs for node in column}) > 1 and column[0].op is ops.GETITEM:
            row = _row_of(column)
            if row is None:
                return None
            loop.rows[column] = row
            nodes_outside.add(row.source)
            continue
        for operands in zip(*(node.operands for node in column), strict=True):
            if not _has_one_role(loop, operands, [place.get(o) for o in operands], nodes_outside):
                return None
    # A loop without a carry is no loop; rows that depend on the turns cannot be read before it.
    if not loop.carried or not place.keys().isdisjoint(walk(nodes_outside)):
        return None
    return loop


def _has_one_role(
    loop: Loop, operands: tuple[Node, ...], places: Sequence[Any], outside: set[Node]
) -> bool:
    """Return whether an operand, given turn by turn, has one role, and note a row or a carry.

    Args:
        places: (turn, place in it) of each; None: it is from around the loop.
        outside: what the loop reads from around it, which grows.
    """
    if places[1] is None:
        if any(place is not None for place in places):
            return False
        if len({*operands}) > 1:
            row = loop.rows.get(operands) or _row_of(operands)
            if row is None:
                return False
            loop.rows[operands] = row
            outside.add(row.source)
        else:
            outside.add(operands[0])
        return True
    turn, i = places[1]
    if any(place != (t - 1 + turn, i) for t, place in enumerate(places) if t):
        return False
    if turn == 1:  # of the turn itself
        return places[0] == (0, i)
    initial = loop.carried.setdefault(i, operands[0])
    outside.add(initial)
    return initial is operands[0] and places[0] is None and initial.type.kind == "tensor"


def _with_replaced(
    trace: Trace, outputs: Sequence[Node], replacements: Mapping[Node, Value]
) -> tuple[Node, ...]:
    # Replaced nodes keep the source line of those that they replace.
    graph = Graph("", (), tuple(outputs), trace.source.locations)
    nodes = {node: value.node for node, value in replacements.items()}
    graph_after = renew_calls(graph, substitute(graph, nodes), nodes)
    for node, location in graph_after.locations.items():
        trace.source.locations.setdefault(node, location)
    return graph_after.outputs
