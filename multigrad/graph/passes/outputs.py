"""Outputs that backward reads as forward gave them: a derivative of the backward passes through
them by the Function's own gradient, and not by the ops that computed them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .. import ops
from ..ir.graph import Graph, Node, make_node
from ..ir.types import is_float
from .simplify import substitute


def mark_output(node: Node, position: int) -> Node:
    """Return what stands in backward for an output of this value; itself where it has no gradient
    that could be another.
    """
    if node.type.kind != "tensor" or not is_float(node.type):
        return node
    return make_node(ops.OUTPUT, (unmarked(node),), {"position": position}, node.type)


def unmarked(node: Node) -> Node:
    """Return a value without the mark of an output."""
    while node.op is ops.OUTPUT:
        (node,) = node.operands
    return node


def marks(graph: Graph) -> tuple[tuple[Node, int], ...]:
    """Return the marks that a graph reads, each with the position of its output."""
    found = [node for node in graph.nodes if node.op is ops.OUTPUT]
    return tuple([(node, node.attr("position")) for node in found])


def drop_marks(graph: Graph) -> Graph:
    """Return a graph in which an output is what computed it."""
    while found := marks(graph):
        graph = substitute(graph, {node: node.operands[0] for node, _ in found})
    return graph


def mark_everywhere(graph: Graph, outputs: Sequence[Node]) -> Graph:
    """Return a backward in which whatever is an output bears its mark."""
    found = {
        node: mark_output(node, position)
        for position, node in reversed([*enumerate(outputs)])
        if node.op is not ops.INPUT
    }
    return substitute(graph, {node: mark for node, mark in found.items() if mark is not node})


@contextmanager
def given_by_forward(symbols: Sequence[Any], own: Sequence[Any]) -> Iterator[None]:
    """Let the symbols of outputs stand for what forward gave while backward runs, other than those
    that are the function's `own` arguments.
    """
    arguments = set(map(id, own))
    places = {id(each): (each, i) for i, each in reversed([*enumerate(symbols)])}
    swapped = [(each, each.node, i) for key, (each, i) in places.items() if key not in arguments]
    for symbol, node, position in swapped:
        symbol.node = mark_output(node, position)
    try:
        yield
    finally:
        for symbol, node, _ in swapped:
            symbol.node = node
