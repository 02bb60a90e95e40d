"""Updates of arguments in place.

A graph has none: on its own framework the function runs itself. Elsewhere an argument keeps its
value, which a warning says. Inside another capture, the symbol there is updated.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from ....capture.values.tracer import V
from ....errors import TraceError
from ....graph.ir.graph import Graph, Location, Node
from ....graph.ir.types import BOOL, dtype_name
from ....graph.support.trees import optree
from ....trace.derived.custom_calls import replay, route_gradient
from ....trace.trace import Trace, Value, setting
from ..arguments import Leaf, owner_of

Tensor = Any

COPIES = "xg.Capture(copies=True)"  # in messages


class Update(NamedTuple):
    """An argument that was updated.

    Attributes:
        leaf: which.
        node: what it holds afterwards.
        output: which output it has become, as autodiff sees it; None: autodiff was not told.
        where: the line that did it.
    """

    leaf: Leaf
    node: Node
    output: int | None
    where: Location | None


def find_updates(
    leaves: Sequence[Leaf],
    symbols: Sequence[Any],
    before: Sequence[Node | None],
    outputs: Sequence[Any],
    dirty: Sequence[Any],
) -> tuple[Update, ...]:
    """Return the arguments that were updated, or are said to be, after a function was recorded.

    Args:
        symbols, before: of each argument, and the nodes that they had.
        dirty: which of them it has said to be updated.
    """
    updates = []
    for leaf, symbol, node in zip(leaves, symbols, before, strict=True):
        is_dirty = any(symbol is each for each in dirty)
        # An update shows as a new node, or its author has said so (torch's `mark_dirty`).
        if isinstance(symbol, Value) and (symbol.node is not node or is_dirty):
            places = [i for i, each in enumerate(outputs) if each is symbol]
            output = places[0] if places and is_dirty else None
            trace = symbol.trace
            where = (
                trace.memory.updates.get(node, trace.source.defined) if node is not None else None
            )
            updates.append(Update(leaf, symbol.node, output, where))
    return tuple(updates)


def hide(updates: Sequence[Update], symbols: Mapping[str, Any], before: Mapping[str, Node]) -> None:
    """Hide from what is recorded next, a backward, the updates that autodiff was not told of."""
    for update in updates:
        symbol = symbols[update.leaf.name]
        if update.output is None and isinstance(symbol, V):
            assign(symbol, route_gradient(symbol.trace, update.node, to=before[update.leaf.name]))


def assign(symbol: V, value: Value) -> None:
    """Give a symbol a value without noting a line of the user's code."""
    trace = symbol.trace
    with setting(trace.memory, updates=dict(trace.memory.updates)):
        symbol.update(value)


def describe(updates: Sequence[Update]) -> str:
    paths = " and ".join(repr(update.leaf.path) for update in updates)
    return f"updates its argument {paths} in place"


def warn_left_out(subject: str, updates: Sequence[Update], backend: str, module: str) -> None:
    where = next((update.where for update in updates if update.where is not None), None)
    file, line = ("<unknown>", 1) if where is None else (where.file, where.line)
    message = (
        f"{subject} {describe(updates)}; captured for {backend}, it leaves the caller's as it is. "
        f"By xg.convert(..., capture={COPIES}) it does so on its own framework, too"
    )
    warnings.warn_explicit(message, UserWarning, file, line, module=module)


def copied(leaf: Any) -> Any:
    """Return a tensor of the same values in memory of its own; anything else as it is."""
    if owner_of(leaf) is None:
        return leaf
    # Ops that every framework has, and differentiates.
    return leaf | leaf if dtype_name(leaf.dtype) == BOOL else leaf * 1


def copied_all(tree: Any) -> Any:
    # By identity: a tensor given twice stays one tensor.
    copies: dict[int, Any] = {}
    return optree.tree_map(lambda x: copies.setdefault(id(x), copied(x)), tree, none_is_leaf=True)


def check_apart(subject: str, updates: Sequence[Update], tensors: Sequence[Any]) -> None:
    """Raise if a tensor is given twice: the function would see its own update."""
    if any(a is b for a, b in combinations(tensors, 2)):
        raise TraceError(f"{subject} {describe(updates)} and gets one tensor twice. Copy it first")


def put_updates(
    trace: Trace,
    updates: Sequence[Update],
    graph: Graph,
    inputs: Mapping[str, Any],
    holders: Mapping[str, Any],
    outputs: Sequence[Any],
) -> None:
    """Update the arguments in the capture that a function is called in.

    Autodiff that was not told of an update takes the derivative of the argument as it was.

    Args:
        graph: its forward.
        inputs: what the graph's inputs are there.
        holders: the arguments by name.
        outputs: what the call gave.

    Raises:
        TraceError: an argument is a constant, or cannot be updated there.
    """
    check_apart(f"{graph.name!r}", updates, [v for v in holders.values() if isinstance(v, Value)])
    for leaf, node, output, _ in updates:
        holder = holders[leaf.name]
        if not isinstance(holder, V):
            # Else the update would be lost silently.
            raise trace.error(f"lets {graph.name!r} update a constant in place")
        if output is not None:
            value = outputs[output]
        else:
            (value,) = replay(trace, Graph(graph.name, graph.inputs, (node,)), inputs)
            value = route_gradient(trace, value.node, to=holder.node)
        assign(holder, value)
