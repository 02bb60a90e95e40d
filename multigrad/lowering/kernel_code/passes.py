"""The passes of a kernel over the elements: which lines are in which loop.

A pass reads the elements and sums up; what needs the sums is computed between two passes, or in the
next one, again from the inputs. A softmax over rows is one pass, with three steps for each row:

    FULL  v1 = v0                                total v1: the largest of the row
    FULL  v2 = v0 - v1, v3 = exp(v2), v4 = v3    total v4: the sum of the row
    FULL  v2 = v0 - v1, v3 = exp(v2), v5 = v3 / v4    result 0

`Arrangement` puts the lines of a graph in such steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ...graph.ir.graph import Graph, Node
from ...graph.ir.op import Op
from ...graph.support.params import COLUMN, FULL, ONE, ROW, CannotFuseError
from .layouts import Layouts


class Total(NamedTuple):
    """A reduction of `value`, which is computed for each element, to a value of this name."""

    value: str
    op: Op
    kind: str
    # What a variance subtracts from the count.
    correction: float = 0

    def finished(self, text: str, rows: Mapping[Op, str], counts: Mapping[str, str]) -> str:
        """Return the code of the result, such as a mean, from the code of a sum."""
        return rows.get(self.op, "{0}").format(text, counts[self.kind], self.correction)


class LoopStep(NamedTuple):
    """The content of one loop, over the elements of a chunk or over what `space` says.

    Attributes:
        space: FULL, ROW, COLUMN or ONE.
        lines: each names an expression.
        reads: the values from elsewhere.
        results: the positions of results that are written.
        totals: the reductions.
    """

    space: str
    lines: tuple[str, ...]
    reads: tuple[str, ...]
    results: tuple[int, ...]
    totals: tuple[Total, ...] = ()


# A pass over the elements, or a step in between.
Loop = tuple[LoopStep, ...]


class Arrangement:
    """Puts the lines of a graph in loops."""

    def __init__(
        self, graph: Graph, layouts: Layouts, names: Mapping[Node, str], lines: Mapping[Node, str]
    ) -> None:
        self.graph, self.layouts = graph, layouts
        self.names, self.lines = names, lines
        self.reductions = [node for node in layouts.of if layouts.reduces(node)]

    def loops(self) -> tuple[Loop, ...]:
        """Return the loops, in order.

        Raises:
            CannotFuseError: elements need the sums of columns.
        """
        layouts, found = self.layouts, []
        for turn in range(max(layouts.passes.values(), default=0) + 1):
            now = [node for node in layouts.of if layouts.passes[node] == turn]
            # Numbers made of sums come before the pass that reads them.
            for space in (ONE, COLUMN):
                roots = self.outputs(now, space)
                if space == ONE:  # a later one may need any of them
                    roots += [node for node in now if self.is_of(node, ONE)]
                if any(not layouts.is_given(node) for node in roots) or self.positions(roots):
                    found.append((self.step(space, roots, (space,), ()),))
            totals = [
                node
                for node in self.reductions
                if layouts.of[node].kind != ROW and layouts.passes[node] == turn + 1
            ]
            roots = [*self.outputs(now, FULL), *self.outputs(now, ROW)]
            if steps := self.steps(roots, totals):
                found.append(steps)
        return tuple(found)

    def is_of(self, node: Node, *kinds: str) -> bool:
        return self.layouts.of[node].kind in kinds

    def outputs(self, now: Collection[Node], kind: str) -> list[Node]:
        return [node for node in self.graph.outputs if node in now and self.is_of(node, kind)]

    def positions(self, nodes: Collection[Node]) -> tuple[int, ...]:
        return tuple([i for i, node in enumerate(self.graph.outputs) if node in nodes])

    def steps(self, roots: Sequence[Node], totals: Sequence[Node]) -> Loop:
        layouts, turns = self.layouts, self.layouts.turns
        ends = [*roots, *[node.operands[0] for node in totals]]
        live = self.below(ends, (FULL, ROW, COLUMN), through=True)
        of_rows = [node for node in live if self.is_of(node, ROW)]
        found = []
        for turn in range(max([turns[node] for node in live], default=0) + 1):
            here = [node for node in of_rows if turns[node] == turn]
            computed = [node for node in here if not layouts.is_given(node)]
            if computed or self.positions([node for node in here if node in roots]):
                kept = [node for node in here if node in roots]
                found.append(self.step(ROW, [*computed, *kept], (ROW,), kept))
            stored = [node for node in roots if self.is_of(node, FULL) and turns[node] == turn]
            reduced = [node for node in totals if turns[node.operands[0]] == turn]
            next_ones = [each for each in of_rows if turns[each] == turn + 1]
            reduced += [each for each in next_ones if layouts.reduces(each)]
            if stored or reduced:
                found.append(self.step(FULL, [*stored, *reduced], (FULL, COLUMN), stored))
        return tuple(found)

    def below(self, ends: Iterable[Node], kinds: Collection[str], through: bool) -> list[Node]:
        """Return the nodes of these kinds that `ends` need; `through`: via row reductions too."""
        found, stack = set(), [*ends]
        while stack:
            node = stack.pop()
            if node in found or not self.is_of(node, *kinds):
                continue
            found.add(node)
            if not self.layouts.is_given(node) or (through and self.is_of(node, ROW)):
                stack += self.layouts.read(node)
        return [node for node in self.layouts.of if node in found]

    def total(self, node: Node) -> Total:
        correction = dict(node.attrs).get("correction", 0)
        return Total(self.names[node], node.op, self.layouts.of[node].kind, correction)

    def step(
        self, space: str, roots: Sequence[Node], kinds: Collection[str], kept: Collection[Node]
    ) -> LoopStep:
        layouts = self.layouts
        reduced = [node for node in roots if space == FULL and layouts.reduces(node)]
        ends = [*[node for node in roots if node not in reduced], *[n.operands[0] for n in reduced]]
        live = self.below(ends, kinds, through=False)
        computed = [node for node in live if not layouts.is_given(node)]
        if space == FULL and any(layouts.passes[n] and self.is_of(n, COLUMN) for n in live):
            raise CannotFuseError("elements that need the sums of columns")
        written = [node for node in self.graph.outputs if node in kept or space in (ONE, COLUMN)]
        written = [node for node in written if self.is_of(node, space) and node in roots]
        read = [each for node in (*computed, *reduced) for each in layouts.read(node)]
        outside = dict.fromkeys([each for each in (*read, *written) if each not in computed])
        return LoopStep(
            space,
            tuple([self.lines[node] for node in (*computed, *reduced)]),
            tuple([self.names[node] for node in outside]),
            self.positions(written),
            tuple(map(self.total, reduced)),
        )
