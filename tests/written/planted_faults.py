"""Faults of capture, planted on purpose: what a graph may get wrong, done to graphs that are
right.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from multigrad.functions.proof.bounded import run_bounded
from multigrad.graph.ir.graph import Graph, Node, make_node
from multigrad.graph.ir.types import FLOAT_SCALAR
from multigrad.graph.ops import CONST
from multigrad.graph.passes.simplify import substitute

Fault = Callable[[Graph], Iterator[dict[Node, Node]]]
COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "and", "or", "xor", "eq", "ne"})


def drop_a_node(graph: Graph) -> Iterator[dict[Node, Node]]:
    """A step is forgotten: its operand goes on in its place."""
    for node in graph.nodes:
        for operand in node.operands:
            if operand.type == node.type and node.op is not CONST:
                yield {node: operand}


def swap_operands(graph: Graph) -> Iterator[dict[Node, Node]]:
    """`a - b` is read as `b - a`, `where(c, a, b)` as `where(c, b, a)`."""
    for node in graph.nodes:
        if len(node.operands) < 2 or node.op.name in COMMUTATIVE:
            continue
        *first, a, b = node.operands
        same = a.type.kind == b.type.kind and a.type.dtype == b.type.dtype
        if same or node.op.name in ("sub", "div", "pow"):
            yield {node: make_node(node.op, (*first, b, a), dict(node.attrs), node.type)}


def change_an_attribute(graph: Graph) -> Iterator[dict[Node, Node]]:
    """A default of another library: n for n - 1, another axis, another slope."""
    for node in graph.nodes:
        for name, value in node.attrs:
            if node.operands and type(value) in (int, float) and name != "value":
                attrs = {**dict(node.attrs), name: value + 1}
                yield {node: make_node(node.op, node.operands, attrs, node.type)}


def ignore_a_number(graph: Graph) -> Iterator[dict[Node, Node]]:
    """An argument, or a number that was written, is not read."""
    for node in graph.nodes:
        is_number = node.type.kind == "scalar" and node.type.dtype == "float"
        if is_number and not node.operands:
            yield {node: make_node(CONST, (), {"value": 0.8125}, FLOAT_SCALAR)}


FAULTS: tuple[Fault, ...] = (drop_a_node, swap_operands, change_an_attribute, ignore_a_number)


def plant(graph: Graph, seed: int) -> Graph:
    """Return a graph that computes something else, by the first fault of a shuffled list that
    shows.

    Raises:
        LookupError: no fault changes its results.
    """
    generator = random.Random(seed)
    choices = [change for fault in FAULTS for change in fault(graph)]
    generator.shuffle(choices)
    # One kind of fault after the other, so that rare ones come too.
    wanted = FAULTS[seed % len(FAULTS)]
    for change in [*_shuffled(wanted(graph), generator), *choices]:
        faulty = substitute(graph, change)
        if _differs(graph, faulty):
            return replace(faulty, locations=graph.locations, origin=graph.origin)
    raise LookupError(f"no fault of {graph.name} shows")


def _shuffled(changes: Iterator[dict[Node, Node]], generator: random.Random) -> list[Any]:
    found = list(changes)
    generator.shuffle(found)
    return found


def _differs(graph: Graph, faulty: Graph) -> bool:
    """Return whether some results are clearly others, on numbers that the proof does not draw."""
    generator = np.random.default_rng(99)
    given = {
        node.attr("name"): generator.normal(size=(3, 4)) if node.type.kind == "tensor" else 1.25
        for node in graph.inputs
    }
    try:
        found = [np.asarray(b.value) for b in run_bounded(faulty, given, np.dtype("float32"))]
    except (TypeError, ValueError, IndexError):
        return False  # of another shape: it would be seen without a proof
    expected = [np.asarray(b.value) for b in run_bounded(graph, given, np.dtype("float32"))]
    return _clearly_apart(found, expected)


def _clearly_apart(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    for a, b in zip(found, expected, strict=True):
        if a.shape != b.shape:
            return False
        with np.errstate(all="ignore"):
            apart = np.abs(a.astype(float) - b.astype(float))
        if np.isfinite(apart).all() and np.mean(apart > 1e-2) > 0.2:
            return True
    return False
