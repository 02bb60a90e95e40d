"""What a capture's graph leaves out of its code, and the values that it assumes.

A capture notes each kind of omission in `Limits.omissions`; if one matters, the code itself runs
(`functions.calls.decision`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..ir.graph import Location, Node

# --- kinds of omissions --------------------------------------------------------------------------
ASSERTIONS = "what it asserts of values"
AUTOCAST = "what it computes under autocast"
BRANCHES = "the one way of several that it takes"
FORWARD_MODE = "its own jvp, in forward mode"
ORDERS = "the derivative of its backward"
SHARED = "the memory that its results share"
SPARSE = "what it does with a sparse gradient"
NO_GRADIENTS = "the gradients that it leaves out where a cotangent is missing"
STATE = "what its backward changes on ctx"
TWICE = "the tensor that it returns twice"
UNDIFFERENTIATED = "what it computes where nobody differentiates it"
# Effects of the code, which a graph never has.
NOTES = "the attributes that it sets"
UPDATES = "the arguments that it updates in place"
# Reasons for which there is no graph.
MISSING = "another gradient where a cotangent is missing"


class Assumption(NamedTuple):
    """An assertion about a value: its expected truth, its place, and the exception it raises."""

    node: Node
    expected: bool
    where: Location | None
    kind: type[Exception]


@dataclass(slots=True, eq=False, repr=False)
class Limits:
    """The respects in which a capture's graph does not represent the code."""

    assumed: list[Assumption] = field(default_factory=list)
    omissions: dict[str, str] = field(default_factory=dict)  # what is left out: a kind, its words
    branch_path: Any = None  # a `BranchPath`, if branches on values are recorded once per path
    draws_of_one: int = 0  # the most draws of a function that it calls
