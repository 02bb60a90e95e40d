"""Properties of ops: linearity, and the domain where they are smooth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from ..ir.graph import Graph, Node

# --- degree: is the result linear in what its operands are linear in? --------------------------
# Zero is linear in anything, and depends on nothing. An op is asked if an operand is LINEAR.
CONSTANT, LINEAR, ZERO = 0, 1, 2
Degree = int | None  # None: none of these


def linear(node: Node, degrees: list[Degree]) -> Degree:
    """Return LINEAR if every operand is."""
    return None if CONSTANT in degrees else LINEAR


def choice(node: Node, degrees: list[Degree]) -> Degree:
    condition, *values = degrees
    return None if condition == LINEAR or CONSTANT in values else LINEAR


def in_one(node: Node, degrees: list[Degree]) -> Degree:
    """Return LINEAR if one operand is and the others are constant: a product of them all."""
    return LINEAR if degrees.count(LINEAR) == 1 else None


def in_first(node: Node, degrees: list[Degree]) -> Degree:
    """Return LINEAR if the first operand is; the others, which arrange it, must not be."""
    return LINEAR if degrees[0] == LINEAR and LINEAR not in degrees[1:] else None


def in_ends(node: Node, degrees: list[Degree]) -> Degree:
    return choice(node, degrees[::-1])


def in_last(node: Node, degrees: list[Degree]) -> Degree:
    return in_first(node, degrees[::-1])


def filled_with_zero(node: Node, degrees: list[Degree]) -> Degree:
    return LINEAR if node.attr("fill") == 0 else None


def spread(graph: Graph, given: Mapping[Node, Degree]) -> dict[Node, Degree]:
    """Return the degree of each node of a graph, given those of its inputs."""
    degrees = dict(given)
    for node in graph.nodes:
        if node in degrees:
            continue
        # An operand that is read for its shape only does not count.
        operands = node.operands_read if node.op.shape_only else node.operands
        reads = [*map(degrees.__getitem__, operands)]
        if None in reads:
            degrees[node] = None
        elif LINEAR in reads:
            degrees[node] = None if node.op.degree is None else node.op.degree(node, reads)
        else:
            # No product is: zero times infinity is none.
            is_sum = node.op.degree is linear and reads and CONSTANT not in reads
            may_be_zero = node.op.name in FILLED
            degrees[node] = ZERO if is_sum or (may_be_zero and is_zero(node)) else CONSTANT
    return degrees


FILLED = ("const", "full_like")


def is_zero(node: Node) -> bool:
    """Return whether a node is the number zero, or a tensor filled with it."""
    if node.op.name == "full_like":
        return is_zero(node.operands[1])
    return node.op.name == "const" and node.attr("value") == 0


class Domain(NamedTuple):
    """An open interval; `falls`: no element is larger than the one before it, along the axis."""

    low: float
    high: float
    falls: bool = False


REALS = Domain(-math.inf, math.inf)
FALLING = Domain(-math.inf, math.inf, falls=True)
ABOVE_ZERO = Domain(0.0, math.inf)
ABOVE_ONE = Domain(1.0, math.inf)
BELOW_MINUS_ONE = Domain(-math.inf, -1.0)
ABOVE_MINUS_ONE = Domain(-1.0, math.inf)
BETWEEN_ZERO_AND_ONE = Domain(0.0, 1.0)
WITHIN_ONE = Domain(-1.0, 1.0)
