"""A function that its own rules call: what they get are its outputs, whose gradient is its own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ...graph.passes.outputs import mark_output
from ...graph.support.trees import optree
from ...trace.omissions import ORDERS
from ...trace.trace import Value


def outputs_of(name: str, found: Any, asked: Any, given: Any) -> Any:
    """Return what a rule gets of its own function, which computes `found`. For other arguments than
    those of the rule no derivative may be taken of it.

    Args:
        asked: the arguments of this call, nested.
        given: those that the rule is recorded for, nested alike; None: nobody knows them.
    """
    symbols = [each for each in _flatten(asked) if isinstance(each, Value)]
    if given is not None and are_same(_flatten(asked), _flatten(given)):
        return as_outputs(found)
    if symbols:
        trace = symbols[0].trace
        trace.lost_gradient = name
        trace.omit(ORDERS, f"the derivatives of {name!r} of any order")
    return found


def as_outputs(found: Any) -> Any:
    """Return the outputs of a function as its backward has them."""
    leaves, tree = optree.tree_flatten(found, none_is_leaf=True)
    places = itertools.count()
    marked = [
        each.trace.value(mark_output(each.node, next(places))) if isinstance(each, Value) else each
        for each in leaves
    ]
    return optree.tree_unflatten(tree, marked)


def are_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Return whether two lists of arguments hold the same symbols and equal other values."""
    return len(a) == len(b) and all(itertools.starmap(is_same, zip(a, b, strict=True)))


def is_same(a: Any, b: Any) -> bool:
    """Return whether two arguments are one symbol, or equal values."""
    if isinstance(a, Value) and isinstance(b, Value):
        return a.trace is b.trace and a.node is b.node
    return a is b or (type(a) is type(b) and repr(a) == repr(b))


def _flatten(arguments: Any) -> list[Any]:
    return optree.tree_leaves(arguments, none_is_leaf=True)
