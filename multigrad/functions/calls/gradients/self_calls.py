"""A function that its own rules call: what it gives there, and what cannot be differentiated."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ....graph.passes.residuals import mark_output
from ....graph.support.trees import optree
from ....trace.assertions import ORDERS
from ....trace.trace import Value


def outputs_of(name: str, outputs: Any, asked: Any, recorded: Any) -> Any:
    """Return outputs to a rule that calls its own function.

    No derivative may be taken of them if the arguments are not those of the rule.

    Args:
        asked: the arguments of this call, nested.
        recorded: those that the rule is recorded for, nested alike; None if they are not known.
    """
    symbols = [each for each in _flatten(asked) if isinstance(each, Value)]
    if recorded is not None and are_same(_flatten(asked), _flatten(recorded)):
        return as_outputs(outputs)
    if symbols:
        trace = symbols[0].trace
        trace.backward.lost_gradient = name
        trace.omit(ORDERS, f"the derivatives of {name!r} of any order")
    return outputs


def as_outputs(outputs: Any) -> Any:
    """Return the outputs of a function as its backward has them."""
    leaves, tree = optree.tree_flatten(outputs, none_is_leaf=True)
    places = itertools.count()
    marked = [
        each.trace.value(mark_output(each.node, next(places))) if isinstance(each, Value) else each
        for each in leaves
    ]
    return optree.tree_unflatten(tree, marked)


def are_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(itertools.starmap(is_same, zip(a, b, strict=True)))


def is_same(a: Any, b: Any) -> bool:
    if isinstance(a, Value) and isinstance(b, Value):
        return a.trace is b.trace and a.node is b.node
    # Plain values may be made anew for each call, so their texts decide.
    return a is b or (type(a) is type(b) and repr(a) == repr(b))


def _flatten(arguments: Any) -> list[Any]:
    return optree.tree_leaves(arguments, none_is_leaf=True)
