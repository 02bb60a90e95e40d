"""What a row may say of its op: where it is linear, how much it makes, where it is smooth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..ir.graph import Graph, Node

# --- degree: is the result linear in what its operands are linear in? --------------------------
CONSTANT, LINEAR = 0, 1
Degree = int | None  # None: neither


def linear(node: Node, degrees: list[Degree]) -> Degree:
    """Linear only where every operand is."""
    return LINEAR if all(degree == LINEAR for degree in degrees) else None


def product(node: Node, degrees: list[Degree]) -> Degree:
    return LINEAR if sorted(degrees) == [CONSTANT, LINEAR] else None  # type: ignore[type-var]


def quotient(node: Node, degrees: list[Degree]) -> Degree:
    return LINEAR if degrees == [LINEAR, CONSTANT] else None


def choice(node: Node, degrees: list[Degree]) -> Degree:
    condition, *values = zip(node.operands, degrees, strict=True)
    chosen = all(degree == LINEAR or is_zero(value) for value, degree in values)
    return LINEAR if condition[1] == CONSTANT and chosen else None


def in_one(node: Node, degrees: list[Degree]) -> Degree:
    """Linear in one operand, the others constant: a product of them all."""
    return LINEAR if degrees.count(LINEAR) == 1 else None


def in_first(node: Node, degrees: list[Degree]) -> Degree:
    """Linear in the first operand, arranged by the others."""
    return LINEAR if degrees[0] == LINEAR and LINEAR not in degrees[1:] else None


def in_each(node: Node, degrees: list[Degree]) -> Degree:
    """Linear where every operand is, or is zero."""
    pairs = zip(node.operands, degrees, strict=True)
    return LINEAR if all(degree == LINEAR or is_zero(value) for value, degree in pairs) else None


def filled_with_zero(node: Node, degrees: list[Degree]) -> Degree:
    return LINEAR if node.attr("fill") == 0 else None


def spread(graph: Graph, given: Mapping[Node, Degree]) -> dict[Node, Degree]:
    """Return how each node of a graph depends on what its inputs depend on."""
    degrees = dict(given)
    for node in graph.nodes:
        if node in degrees:
            continue
        read = [degrees[o] for i, o in enumerate(node.operands) if i not in node.op.shape_only]
        if read.count(CONSTANT) == len(read):
            degrees[node] = CONSTANT
        elif node.op.degree is None or None in read:
            degrees[node] = None
        else:
            degrees[node] = node.op.degree(node, read)
    return degrees


def is_zero(node: Node) -> bool:
    """Return whether a node is the number zero, or a tensor filled with it."""
    if node.op.name == "full_like":
        return is_zero(node.operands[1])
    return node.op.name == "const" and node.attr("value") == 0


# --- growth: the copies of an input that a result holds, or the bits of an integer -------------
LENGTH_BITS = 63


def added(node: Node, sizes: Sequence[int]) -> int:
    return sum(sizes)


def multiplied(node: Node, sizes: Sequence[int]) -> int:
    return math.prod(sizes)


def carried(node: Node, bits: Sequence[int]) -> int:
    return max(bits) + 1


def doubled(node: Node, bits: Sequence[int]) -> int:
    return 2 * bits[0]


def shifted(node: Node, bits: Sequence[int]) -> int:
    return bits[0] + 31


def length(node: Node, bits: Sequence[int]) -> int:
    return LENGTH_BITS


# --- domain: where an operand is, that the op is smooth ----------------------------------------
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
