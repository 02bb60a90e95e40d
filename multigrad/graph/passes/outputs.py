"""Outputs that backward reads as forward gave them: a derivative of the backward passes through
them by the Function's own gradient, and not by the ops that computed them; and outputs that decide
what backward asks of an input.
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


def as_input(node: Node, name: str) -> Node:
    """Return what stands for a node where it is given under a name."""
    return node if node.op is ops.INPUT else make_node(ops.INPUT, (), {"name": name}, node.type)


def decide_by_outputs(forward: Graph, backward: Graph, names: Sequence[str]) -> Graph:
    """Return a backward that compares a rectifier's output, not its input, where that decides the
    same: max(x, 0) > c if x > c, for a number c of at least 0, and NaN stays NaN.
    """
    rectified = {
        node.operands[0]: as_input(node, name)
        for node, name in zip(forward.outputs, names, strict=True)
        if node.op is ops.RELU
    }
    if not rectified:
        return backward
    decided: dict[Node, Node] = {}
    for node in backward.nodes:
        if node.op not in (ops.GT, ops.LE, ops.GE, ops.LT):
            continue
        x, limit = node.operands
        if x not in rectified or limit.op is not ops.CONST:
            continue
        value = limit.attr("value")
        if value > 0 or (value == 0 and node.op in (ops.GT, ops.LE)):
            decided[node] = make_node(node.op, (rectified[x], limit), {}, node.type)
    return substitute(backward, decided)


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
