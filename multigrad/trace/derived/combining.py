"""Cotangents of one value that become one otherwise than by a sum: by the maximum, or the last.

What they are of is declared (`accumulate=`), and each comes from a call of a function that has a
gradient of its own: an op's own share is a part of a derivative, which is a sum, and how many ops
code becomes is nobody's to know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...graph import ops
from ...graph.ir.graph import Node, every_node, regions_of
from ..trace import Trace, Value
from ..xp import all as xp
from .calls import CustomCall

Modes = Mapping[Node, str]


class Combined:
    """The cotangents of the values that have a mode, while a derivative is taken."""

    def __init__(self, trace: Trace, order: Sequence[Node], declared: Modes) -> None:
        self.trace = trace
        self.modes = dict(declared)
        self.shares: dict[Node, list[tuple[tuple[int, int], Node, Any]]] = {}
        for node in order:
            if node.op is ops.CALL:
                self._declare(node)

    def _declare(self, node: Node) -> None:
        """Note the modes that a called function declares, of what it is given."""
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
        """Take the share that a node gives to the cotangent of a value with a mode."""
        called = node.op is ops.CALL
        place = (node.attr("function").serial if called else -1, position)
        self.shares.setdefault(operand, []).append((place, node, share))

    def one(self, value: Node) -> Any:
        """Return what the shares of a value become; None: there are none."""
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
        where = self.trace.locations.get(node) if node is not None else None
        return self.trace.error(
            f"has accumulate={self.modes[value]!r} for {called}, but {problem}. {advice}", where
        )


def refuse_within(trace: Trace, loop: Node) -> None:
    """Refuse a loop that calls a function with a mode for an argument.

    Raises:
        TraceError: it does.
    """
    for region in regions_of(loop):
        for node in every_node(region.graph):
            if node.op is ops.CALL and node.attr("function").modes:
                called = node.attr("function").backward.name
                raise trace.error(
                    f"calls {called!r}, which has accumulate=, in a loop, whose turns add up. "
                    "Write the turns out, or put the loop into that function"
                )
