"""The layouts of a graph's tensors in a kernel, and after how many passes each is known.

A tensor has the shape of the elements (FULL), one number for each row (ROW), one for each place in
a row (COLUMN), or one in all (ONE). A reduction over all, or over a column, is known after the pass
that sums it up; one of a row after the turn over that row, which is read again while it is in a
cache.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...graph import ops
from ...graph.ir.graph import Graph, Node
from ...graph.support.params import COLUMN, FULL, ONE, ROW, WHOLE, CannotFuseError, KernelLayout
from .reductions import REDUCTIONS, SQUARED

SIZES = (ops.SIZE, ops.DIM)


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
            reduces = self.reduces(node)
            read = self.read(node)
            passes = max([self.passes[each] for each in read], default=0)
            turns = [self.turns[each] for each in read if self.of[each].kind in (FULL, ROW)]
            of_row = reduces and layout.kind == ROW
            self.passes[node] = passes + (reduces and not of_row)
            self.turns[node] = 0 if layout.kind in (ONE, COLUMN) else max(turns, default=0) + of_row
        # All rows of a kernel are made of the same axes.
        of_rows = {layout.rank for layout in self.of.values() if layout.kind == ROW}
        of_rows |= {1 for layout in self.of.values() if layout.kind == COLUMN}
        if len(of_rows) > 1:
            raise CannotFuseError("rows of the last axis, and of more")
        self.row_axes = min(of_rows, default=1)

    def read(self, node: Node) -> list[Node]:
        return [
            each
            for i, each in enumerate(node.operands)
            if each.type.kind == "tensor" and i not in node.op.shape_only
        ]

    def reduces(self, node: Node) -> bool:
        """Return whether a node reduces; the reduction of one number is that number."""
        return node.op in REDUCTIONS and self.of[node].kind != self.of[node.operands[0]].kind

    def is_given(self, node: Node) -> bool:
        """Return whether loops read a value without computing it: an input, or a reduction."""
        return node.op is ops.INPUT or self.reduces(node)

    def find(self, node: Node) -> KernelLayout:
        if node.op is ops.INPUT:
            return self.inputs[node.attr("name")]
        found = [self.of[each] for each in node.operands if each.type.kind == "tensor"]
        if node.op in REDUCTIONS and node.op is not ops.SUM_TO:
            return self.reduced(node, found[0])
        if node.op is ops.SUM_TO and found[0].kind not in (found[1].kind, FULL):
            raise CannotFuseError("a sum of sums")
        if node.op.shape_only:
            return found[node.op.shape_only[0]]
        kinds = {layout.kind for layout in found}
        # A row and a column broadcast to all elements.
        if FULL in kinds or kinds >= {ROW, COLUMN}:
            return WHOLE
        kind = next((each for each in (ROW, COLUMN) if each in kinds), ONE)
        axes = [each.rank for each in found if each.kind == kind or kind == COLUMN]
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
            most = 1 if layout.kind == COLUMN else self.row_axes
            if layout.kind == ONE or not -most <= node.attr("axis") < rank:
                raise CannotFuseError(f"op {node.op.name}")
        return layout
