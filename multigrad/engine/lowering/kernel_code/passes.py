"""The passes of a kernel over the elements: which lines are in which loop.

A tensor has the shape of the elements (FULL), one number for each row (ROW), one for each place in
a row (COLUMN), or one in all (ONE): `Layouts`. A pass reads the elements and sums up; what needs
the sums is computed between two passes, or in the next one, again from the inputs. A reduction over
a row is known after the turn over that row, which is read again while it is in a cache. A softmax
over rows is one pass, with three steps for each row:

    FULL  v1 = v0                                total v1: the largest of the row
    FULL  v2 = v0 - v1, v3 = exp(v2), v4 = v3    total v4: the sum of the row
    FULL  v2 = v0 - v1, v3 = exp(v2), v5 = v3 / v4    result 0

`Arrangement` puts the lines of a graph in such steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ....core import ops
from ....core.ir.graph import Graph, Node, derive_node
from ....core.ir.op import Op

# What a tensor has one element for: each element, each row, each column, or all.
FULL, ROW, COLUMN, ONE = "full", "row", "column", "one"
SIZES = (ops.SIZE, ops.DIM)
REDUCTIONS = (ops.SUM, ops.MEAN, ops.VAR, ops.STD, ops.MAX, ops.MIN, ops.SUM_TO)
SQUARED = (ops.VAR, ops.STD)  # sums of squares of centered values


class KernelLayout(NamedTuple):
    """The layout of a tensor in a kernel over elements.

    Attributes:
        kind: FULL, ROW, COLUMN or ONE.
        rank: of ONE and COLUMN, the tensor's axes at most; of ROW, the axes of a row.
    """

    kind: str = FULL
    rank: int = 1 << 10

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of such a tensor for elements of this shape."""
        if self.kind == FULL:
            return shape
        if self.kind == ROW:
            return (*shape[: -self.rank], *[1 for _ in shape[-self.rank :]])
        ones = (1,) * min(self.rank, len(shape))
        return (*ones[1:], *shape[-1:]) if self.kind == COLUMN else ones


WHOLE = KernelLayout()


class CannotFuseError(Exception):
    """The reason why there is no kernel, in a few words."""


class NothingToFuseError(CannotFuseError):
    """Plain code is one kernel, or computes one element: no reason to warn of."""


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
        """Return the loops, in order; raise CannotFuseError if elements need sums of columns."""
        layouts, loops = self.layouts, []
        for turn in range(max(layouts.passes.values(), default=0) + 1):
            nodes = [node for node in layouts.of if layouts.passes[node] == turn]
            # Numbers made of sums come before the pass that reads them.
            for space in (ONE, COLUMN):
                roots = self.outputs(nodes, space)
                if space == ONE:  # a later one may need any of them
                    roots += [node for node in nodes if self.is_of(node, ONE)]
                if any(not layouts.is_given(node) for node in roots) or self.positions(roots):
                    loops.append((self.step(space, roots, (space,), ()),))
            totals = [
                node
                for node in self.reductions
                if layouts.of[node].kind != ROW and layouts.passes[node] == turn + 1
            ]
            roots = [*self.outputs(nodes, FULL), *self.outputs(nodes, ROW)]
            if steps := self.steps(roots, totals):
                loops.append(steps)
        return tuple(loops)

    def is_of(self, node: Node, *kinds: str) -> bool:
        return self.layouts.of[node].kind in kinds

    def outputs(self, nodes: Collection[Node], kind: str) -> list[Node]:
        return [node for node in self.graph.outputs if node in nodes and self.is_of(node, kind)]

    def positions(self, nodes: Collection[Node]) -> tuple[int, ...]:
        return tuple([i for i, node in enumerate(self.graph.outputs) if node in nodes])

    def steps(self, roots: Sequence[Node], totals: Sequence[Node]) -> Loop:
        layouts, turns = self.layouts, self.layouts.turns
        ends = [*roots, *[node.operands[0] for node in totals]]
        live = self.below(ends, (FULL, ROW, COLUMN), through=True)
        row_nodes = [node for node in live if self.is_of(node, ROW)]
        steps = []
        for turn in range(max([turns[node] for node in live], default=0) + 1):
            turn_nodes = [node for node in row_nodes if turns[node] == turn]
            computed = [node for node in turn_nodes if not layouts.is_given(node)]
            if computed or self.positions([node for node in turn_nodes if node in roots]):
                row_results = [node for node in turn_nodes if node in roots]
                steps.append(self.step(ROW, [*computed, *row_results], (ROW,), row_results))
            results = [node for node in roots if self.is_of(node, FULL) and turns[node] == turn]
            reductions = [node for node in totals if turns[node.operands[0]] == turn]
            next_rows = [each for each in row_nodes if turns[each] == turn + 1]
            reductions += [each for each in next_rows if layouts.reduces(each)]
            if results or reductions:
                steps.append(self.step(FULL, [*results, *reductions], (FULL, COLUMN), results))
        return tuple(steps)

    def below(self, ends: Iterable[Node], kinds: Collection[str], through: bool) -> list[Node]:
        """Return the nodes of these kinds that `ends` need; `through`: via row reductions too."""
        nodes, stack = set(), [*ends]
        while stack:
            node = stack.pop()
            if node in nodes or not self.is_of(node, *kinds):
                continue
            nodes.add(node)
            if not self.layouts.is_given(node) or (through and self.is_of(node, ROW)):
                stack += self.layouts.read(node)
        return [node for node in self.layouts.of if node in nodes]

    def total(self, node: Node) -> Total:
        correction = dict(node.attrs).get("correction", 0)
        return Total(self.names[node], node.op, self.layouts.of[node].kind, correction)

    def step(
        self, space: str, roots: Sequence[Node], kinds: Collection[str], results: Collection[Node]
    ) -> LoopStep:
        layouts = self.layouts
        totals = [node for node in roots if space == FULL and layouts.reduces(node)]
        ends = [*[n for n in roots if n not in totals], *[n.operands[0] for n in totals]]
        live = self.below(ends, kinds, through=False)
        computed = [node for node in live if not layouts.is_given(node)]
        if space == FULL and any(layouts.passes[n] and self.is_of(n, COLUMN) for n in live):
            raise CannotFuseError("elements that need the sums of columns")
        outputs = [node for node in self.graph.outputs if node in results or space in (ONE, COLUMN)]
        outputs = [node for node in outputs if self.is_of(node, space) and node in roots]
        operands = [each for node in (*computed, *totals) for each in layouts.read(node)]
        reads = dict.fromkeys([each for each in (*operands, *outputs) if each not in computed])
        return LoopStep(
            space,
            tuple([self.lines[node] for node in (*computed, *totals)]),
            tuple([self.names[node] for node in reads]),
            self.positions(outputs),
            tuple(map(self.total, totals)),
        )


# --- layouts --------------------------------------------------------------------------------------


class Layouts:
    """The layouts of the tensors of a graph, relative to the elements.

    Attributes:
        of: the layout of each.
        passes: after how many passes over the elements each is known.
        turns: after how many turns over a row each is known, if it is computed for elements or
            for rows.
        ranks: how many axes the elements have, where a reduction tells.
        row_axes: how many of them, at the end, are a row.
    """

    def __init__(self, graph: Graph, inputs: Mapping[str, KernelLayout]) -> None:
        self.inputs = inputs
        self.of: dict[Node, KernelLayout] = {}
        self.passes: dict[Node, int] = {}
        self.turns: dict[Node, int] = {}
        self.ranks: set[int] = set()
        for node in graph.nodes:
            if node.type.kind != "tensor":
                continue
            layout = self.of[node] = self.find(node)
            is_reduction = self.reduces(node)
            operands = self.read(node)
            passes = max([self.passes[each] for each in operands], default=0)
            turns = [self.turns[each] for each in operands if self.of[each].kind in (FULL, ROW)]
            by_row = is_reduction and layout.kind == ROW
            self.passes[node] = passes + (is_reduction and not by_row)
            self.turns[node] = 0 if layout.kind in (ONE, COLUMN) else max(turns, default=0) + by_row
        # All rows of a kernel are made of the same axes.
        axis_counts = {layout.rank for layout in self.of.values() if layout.kind == ROW}
        axis_counts |= {1 for layout in self.of.values() if layout.kind == COLUMN}
        if len(axis_counts) > 1:
            raise CannotFuseError("rows of the last axis, and of more")
        self.row_axes = min(axis_counts, default=1)

    def read(self, node: Node) -> list[Node]:
        return [each for each in node.operands_read if each.type.kind == "tensor"]

    def reduces(self, node: Node) -> bool:
        """Return whether a node reduces; the reduction of one number is that number."""
        return node.op in REDUCTIONS and self.of[node].kind != self.of[node.operands[0]].kind

    def is_given(self, node: Node) -> bool:
        """Return whether loops read a value without computing it: an input, or a reduction."""
        return node.op is ops.INPUT or self.reduces(node)

    def find(self, node: Node) -> KernelLayout:
        if node.op is ops.INPUT:
            return self.inputs[node.attr("name")]
        layouts = [self.of[each] for each in node.operands if each.type.kind == "tensor"]
        if node.op in REDUCTIONS and node.op is not ops.SUM_TO:
            return self.reduced(node, layouts[0])
        if node.op is ops.SUM_TO and layouts[0].kind not in (layouts[1].kind, FULL):
            raise CannotFuseError("a sum of sums")
        if node.op.shape_only:
            return layouts[node.op.shape_only[0]]
        kinds = {layout.kind for layout in layouts}
        # A row and a column broadcast to all elements.
        if FULL in kinds or kinds >= {ROW, COLUMN}:
            return WHOLE
        kind = next((each for each in (ROW, COLUMN) if each in kinds), ONE)
        axes = [each.rank for each in layouts if each.kind == kind or kind == COLUMN]
        return KernelLayout(kind, max(axes, default=0))

    def reduced(self, node: Node, x: KernelLayout) -> KernelLayout:
        axis, keepdims = node.attr("axis"), node.attr("keepdims")
        if node.op in SQUARED and x.kind != FULL:
            raise CannotFuseError(f"op {node.op.name} of one number")
        if axis is None and x.kind in (FULL, ONE):
            return KernelLayout(ONE, x.rank if keepdims else 0)
        axes = [axis] if isinstance(axis, int) else sorted(axis or ())
        if axes and axes == [*range(axes[0], axes[-1] + 1)]:
            # The last axes; if they are counted from the front, their numbers tell the rank.
            if keepdims and x.kind in (FULL, ROW) and (axes[0] > 0 or axes[-1] == -1):
                self.ranks.update([axes[-1] + 1] if axes[0] > 0 else [])
                return KernelLayout(ROW, len(axes))
            is_sum = node.op in (ops.SUM, ops.MEAN)
            # All axes but the last.
            if is_sum and x.kind == FULL and not keepdims and (axes[0] == 0 or axes[-1] == -2):
                self.ranks.add(len(axes) + 1)
                return KernelLayout(COLUMN, 1)
        raise CannotFuseError(f"op {node.op.name} over {'axis' if axis is None else axis}")

    def sized(self, node: Node) -> KernelLayout:
        """Return the layout of the tensor of which a number is the size, or a length."""
        layout = self.of[node.operands[0]]
        if node.op is ops.DIM:
            rank = 0 if layout.kind == COLUMN else min(self.ranks, default=0)
            axes = 1 if layout.kind == COLUMN else self.row_axes
            if layout.kind == ONE or not -axes <= node.attr("axis") < rank:
                raise CannotFuseError(f"op {node.op.name}")
        return layout


# --- reductions in terms of others ----------------------------------------------------------------


def in_sums(node: Node) -> Node:
    """Return norms, the softmax family and deviations in terms of sums and maxima."""
    if node.op not in MADE_OF and node.op not in SQUARED:
        return node
    x, attrs = node.operands[0], dict(node.attrs)
    over = {"axis": attrs["axis"], "keepdims": attrs.get("keepdims", True)}
    # Centered first, because the squares of large numbers would cancel.
    if node.op in SQUARED:
        centered = _make(ops.SUB, x, _make(ops.MEAN, x, **{**over, "keepdims": True}))
        return _make(node.op, centered, **over, correction=attrs["correction"])
    return MADE_OF[node.op](x, over, attrs)


def norm(x: Node, over: Mapping[str, object], attrs: Mapping[str, object]) -> Node:
    if attrs["ord"] == 2:
        return _make(ops.SQRT, _make(ops.SUM, _make(ops.SQUARE, x), **over))
    if attrs["ord"] not in (1, float("inf")):
        raise CannotFuseError(f"a norm of order {attrs['ord']}")
    return _make(ops.SUM if attrs["ord"] == 1 else ops.MAX, _make(ops.ABS, x), **over)


def shifted(x: Node, over: Mapping[str, object]) -> Node:
    return _make(ops.SUB, x, _make(ops.MAX, x, **{**over, "keepdims": True}))


def softmax(x: Node, over: Mapping[str, object], attrs: Mapping[str, object]) -> Node:
    powers = _make(ops.EXP, shifted(x, over))
    return _make(ops.DIV, powers, _make(ops.SUM, powers, **over))


def log_softmax(x: Node, over: Mapping[str, object], attrs: Mapping[str, object]) -> Node:
    y = shifted(x, over)
    return _make(ops.SUB, y, _make(ops.LOG, _make(ops.SUM, _make(ops.EXP, y), **over)))


MADE_OF: Mapping[Op, Callable[..., Node]] = {
    ops.NORM: norm,
    ops.SOFTMAX: softmax,
    ops.LOG_SOFTMAX: log_softmax,
}


def _make(op: Op, *operands: Node, **attrs: object) -> Node:
    return derive_node(op, operands, attrs)
