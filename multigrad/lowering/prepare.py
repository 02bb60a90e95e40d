"""What fast code needs of the params, computed once for fixed values of them instead of at each call.

A number that meets a tensor costs a call of torch 1.1 us more than a tensor without dimensions, and what is
computed of the params alone need not be computed again. Emitted as a function `prepare(wrap, *params) -> values`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..ir import ops
from ..ir.graph import Node


@dataclass(slots=True)
class Prepared:
    """The prepared values of one emission: `names` in order, each with its expression."""

    lines: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    _known: dict[tuple[Node, bool], str] = field(default_factory=dict)

    def name(self, node: Node, text: str, wraps: bool, fresh: Callable[[str], str]) -> str:
        """Return the name of a static scalar as a number, or (`wraps`) as a tensor."""
        if node.op is ops.INPUT and not wraps:
            return self.names.setdefault(text, text)
        known = self._known.get((node, wraps))
        if known is None:
            known = self._known[node, wraps] = fresh("n")
            self.names[known] = f"wrap({text})" if wraps else text
        return known


def find_static(nodes: Iterable[Node]) -> set[Node]:
    """Return the scalars that depend on params and constants alone."""
    static: set[Node] = set()
    for node in nodes:
        # An input and a constant have no operands; a length has a tensor.
        if node.type.kind == "scalar" and all(operand in static for operand in node.operands):
            static.add(node)
    return static
