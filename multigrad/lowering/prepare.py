"""Which scalars can be computed once for fixed values of the params: what `Prepared` holds."""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.graph import Node


def find_static(nodes: Iterable[Node]) -> set[Node]:
    """Return the scalars that depend on params and constants alone."""
    static: set[Node] = set()
    for node in nodes:
        # An input and a constant have no operands; a length has a tensor.
        if node.type.kind == "scalar" and static.issuperset(node.operands):
            static.add(node)
    return static
