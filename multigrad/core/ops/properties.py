"""Properties of ops: linearity, growth, the domain where they are smooth, values at kinks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from math import inf, nan
from typing import Any, NamedTuple

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
        reads = [*map(degrees.__getitem__, node.operands_read)]
        if None in reads:
            degrees[node] = None
        elif LINEAR in reads:
            degrees[node] = None if node.op.degree is None else node.op.degree(node, reads)
        else:
            # No product is: zero times infinity is none.
            is_sum = node.op.degree is linear and reads and CONSTANT not in reads
            degrees[node] = ZERO if is_sum or is_zero(node) else CONSTANT
    return degrees


def is_zero(node: Node) -> bool:
    """Return whether a node is the number zero, or a tensor filled with it."""
    if node.op.name == "full_like":
        return is_zero(node.operands[1])
    return node.op.name == "const" and node.attr("value") == 0


# --- growth: the copies of an input that a result holds, or the bits of an integer -------------
# A length is below 2**63.
LENGTH_BITS = 63


def added(node: Node, sizes: Sequence[int]) -> int:
    return sum(sizes)


def multiplied(node: Node, sizes: Sequence[int]) -> int:
    return math.prod(sizes)


def carried(node: Node, bits: Sequence[int]) -> int:
    # A sum of two integers has one bit more.
    return max(bits) + 1


def doubled(node: Node, bits: Sequence[int]) -> int:
    return 2 * bits[0]


def shifted(node: Node, bits: Sequence[int]) -> int:
    # A shift is by 31 bits at most.
    return bits[0] + 31


def length(node: Node, bits: Sequence[int]) -> int:
    return LENGTH_BITS


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


# --- kinks: what ops give there, at poles and at jumps -------------------------------------------
# Documents carry the rows of the ops that they use; a test compares each row with its op. OP_SET
# rises when an existing op changes its meaning; a new op leaves it unchanged.
OP_SET = 1
Numbers = Any  # a float, or a tuple of floats
# A row: op, place, operands there, value, derivatives for a cotangent of 1, 2 and so on.
KINKS: tuple[tuple[str, str, tuple[Numbers, ...], Numbers, tuple[Numbers, ...]], ...] = (
    ("abs", "at 0", (0.0,), 0.0, (0.0,)),
    ("acosh", "at 1", (1.0,), 0.0, (inf,)),
    ("asin", "at 1", (1.0,), 1.5707963267948966, (inf,)),
    ("atan2", "at (0, 0)", (0.0, 0.0), 0.0, (0.0, -0.0)),
    ("atanh", "at 1", (1.0,), inf, (inf,)),
    ("cbrt", "at 0", (0.0,), 0.0, (inf,)),
    ("ceil", "at 0", (0.0,), 0.0, (0.0,)),
    ("ceil", "at 2", (2.0,), 2.0, (0.0,)),
    ("clip", "at its lower bound", (0.0, 0.0, 1.0), 0.0, (1.0, 0.0, 0.0)),
    ("clip", "at its upper bound", (1.0, 0.0, 1.0), 1.0, (1.0, 0.0, 0.0)),
    ("clip", "where the bounds cross", (0.5, 1.0, 0.0), 0.0, (0.0, 0.0, 1.0)),
    ("clip", "at NaN", (nan, 0.0, 1.0), nan, (0.0, 0.0, 0.0)),
    ("copysign", "at (0, 1)", (0.0, 1.0), 0.0, (1.0, 0.0)),
    ("cummax", "where all are equal", ((1.0, 1.0),), (1.0, 1.0), ((1.0, 2.0),)),
    ("cummin", "where all are equal", ((1.0, 1.0),), (1.0, 1.0), ((1.0, 2.0),)),
    ("cumprod", "where one is 0", ((0.0, 2.0),), (0.0, 0.0), ((5.0, 0.0),)),
    ("div", "at (0, 0)", (0.0, 0.0), nan, (inf, nan)),
    ("erfinv", "at 1", (1.0,), inf, (inf,)),
    ("floor", "at 0", (0.0,), 0.0, (0.0,)),
    ("floor", "at 2", (2.0,), 2.0, (0.0,)),
    ("floor_divide", "at (2, 1)", (2.0, 1.0), 2.0, (0.0, 0.0)),
    ("fmax", "of equal operands", (1.0, 1.0), 1.0, (0.5, 0.5)),
    ("fmax", "where the first is NaN", (nan, 1.0), 1.0, (0.0, 1.0)),
    ("fmax", "where the second is NaN", (1.0, nan), 1.0, (1.0, 0.0)),
    ("fmin", "of equal operands", (1.0, 1.0), 1.0, (0.5, 0.5)),
    ("fmin", "where the first is NaN", (nan, 1.0), 1.0, (0.0, 1.0)),
    ("fmin", "where the second is NaN", (1.0, nan), 1.0, (1.0, 0.0)),
    ("fmod", "at (2, 1)", (2.0, 1.0), 0.0, (1.0, -2.0)),
    ("frac", "at 0", (0.0,), 0.0, (1.0,)),
    ("frac", "at 2", (2.0,), 0.0, (1.0,)),
    ("hard_shrink", "at 0.5", (0.5,), 0.0, (0.0,)),
    ("hard_sigmoid", "at -3", (-3.0,), 0.0, (0.0,)),
    ("hard_sigmoid", "at 3", (3.0,), 1.0, (0.0,)),
    ("hard_silu", "at -3", (-3.0,), -0.0, (0.0,)),
    ("hard_silu", "at 3", (3.0,), 3.0, (1.0,)),
    ("hard_tanh", "at -1", (-1.0,), -1.0, (0.0,)),
    ("hard_tanh", "at 1", (1.0,), 1.0, (0.0,)),
    ("heaviside", "at 0", (0.0,), 0.0, (0.0,)),
    ("hypot", "at (0, 0)", (0.0, 0.0), 0.0, (0.0, 0.0)),
    ("leaky_relu", "at 0", (0.0,), 0.0, (0.01,)),
    ("log", "at 0", (0.0,), -inf, (inf,)),
    ("logaddexp", "at (-inf, -inf)", (-inf, -inf), -inf, (nan, nan)),
    ("logsumexp", "where all are -inf", ((-inf, -inf),), (-inf,), ((0.0, 0.0),)),
    ("max", "where all are equal", ((1.0, 1.0),), (1.0,), ((0.5, 0.5),)),
    ("maximum", "of equal operands", (1.0, 1.0), 1.0, (0.5, 0.5)),
    ("maximum", "where the first is NaN", (nan, 1.0), nan, (0.0, 1.0)),
    ("maximum", "where the second is NaN", (1.0, nan), nan, (0.0, 1.0)),
    ("median", "where all are equal", ((1.0, 1.0),), (1.0,), ((0.5, 0.5),)),
    ("min", "where all are equal", ((1.0, 1.0),), (1.0,), ((0.5, 0.5),)),
    ("minimum", "of equal operands", (1.0, 1.0), 1.0, (0.5, 0.5)),
    ("minimum", "where the first is NaN", (nan, 1.0), nan, (0.0, 1.0)),
    ("minimum", "where the second is NaN", (1.0, nan), nan, (0.0, 1.0)),
    ("nan_to_num", "at NaN", (nan,), 0.0, (0.0,)),
    ("nan_to_num", "at inf", (inf,), 1.7976931348623157e308, (0.0,)),
    ("norm", "at a vector of zeros", ((0.0, 0.0),), (0.0,), ((0.0, 0.0),)),
    ("pow", "at (0, 0)", (0.0, 0.0), 1.0, (0.0, 0.0)),
    ("prod", "where one is 0", ((0.0, 2.0),), (0.0,), ((2.0, 0.0),)),
    ("prod", "where two are 0", ((0.0, 0.0),), (0.0,), ((0.0, 0.0),)),
    ("reciprocal", "at 0", (0.0,), inf, (-inf,)),
    ("relu", "at 0", (0.0,), 0.0, (0.0,)),
    ("relu6", "at 0", (0.0,), 0.0, (0.0,)),
    ("relu6", "at 6", (6.0,), 6.0, (0.0,)),
    ("remainder", "at (2, 1)", (2.0, 1.0), 0.0, (1.0, -2.0)),
    ("round", "at 0.5", (0.5,), 0.0, (0.0,)),
    ("round", "at 1.5", (1.5,), 2.0, (0.0,)),
    ("round", "at 2", (2.0,), 2.0, (0.0,)),
    ("rsqrt", "at 0", (0.0,), inf, (-inf,)),
    ("selu", "at 0", (0.0,), 0.0, (1.7580993408473766,)),
    ("sign", "at 0", (0.0,), 0.0, (0.0,)),
    ("soft_shrink", "at 0.5", (0.5,), 0.0, (0.0,)),
    ("sort", "where all are equal", ((1.0, 1.0),), (1.0, 1.0), ((1.0, 2.0),)),
    ("sparse_plus", "at -1", (-1.0,), 0.0, (0.0,)),
    ("sparse_plus", "at 1", (1.0,), 1.0, (1.0,)),
    ("sparse_sigmoid", "at -1", (-1.0,), 0.0, (0.0,)),
    ("sparse_sigmoid", "at 1", (1.0,), 1.0, (0.0,)),
    ("sqrt", "at 0", (0.0,), 0.0, (inf,)),
    ("trunc", "at 0", (0.0,), 0.0, (0.0,)),
    ("trunc", "at 2", (2.0,), 2.0, (0.0,)),
    ("xlogy", "at (0, 0)", (0.0, 0.0), 0.0, (0.0, 0.0)),
)


def kinks_of(names: Iterable[str]) -> dict[str, dict[str, dict[str, Numbers]]]:
    op_names = set(names)
    kinks: dict[str, dict[str, dict[str, Numbers]]] = {}
    for name, place, operands, value, derivative in KINKS:
        if name in op_names:
            row = {"of": operands, "value": value, "derivative": derivative}
            kinks.setdefault(name, {})[place] = row
    return kinks
