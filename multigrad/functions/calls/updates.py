"""Arguments that somebody else's function updates in place, as a torch class may.

A graph has no such effect: on its own framework the function runs itself, elsewhere the argument
stays as it was, which a warning says. Inside of another capture, the symbol there is updated.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from ...capture.values.tracer import V
from ...errors import TraceError
from ...graph.ir.graph import Graph, Location, Node
from ...graph.ir.types import BOOL, dtype_name
from ...graph.support.trees import optree
from ...trace.derived.calls import passing_to
from ...trace.replay import replay
from ...trace.trace import Trace, Value
from .arguments import Leaf, owner_of

COPIES = "xg.Capture(copies=True)"


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
    found = []
    for leaf, symbol, node in zip(leaves, symbols, before, strict=True):
        is_dirty = any(symbol is each for each in dirty)
        if isinstance(symbol, Value) and (symbol.node is not node or is_dirty):
            own = [i for i, each in enumerate(outputs) if each is symbol]
            output = own[0] if own and is_dirty else None
            trace = symbol.trace
            where = trace.updates.get(node, trace.defined) if node is not None else None
            found.append(Update(leaf, symbol.node, output, where))
    return tuple(found)


def hide(updates: Sequence[Update], symbols: Mapping[str, Any], before: Mapping[str, Node]) -> None:
    """Hide from what is recorded next, a backward, the updates that autodiff was not told of."""
    for update in updates:
        symbol = symbols[update.leaf.name]
        if update.output is None and isinstance(symbol, V):
            assign(symbol, passing_to(symbol.trace, before[update.leaf.name], update.node))


def assign(symbol: V, value: Value) -> None:
    """Give a symbol a value, as no line of the function that is captured does."""
    trace = symbol.trace
    written = dict(trace.updates)
    symbol.update(value)
    trace.updates = written


def describe(updates: Sequence[Update]) -> str:
    """Return what a function does to its arguments, in words."""
    paths = " and ".join(repr(update.leaf.path) for update in updates)
    return f"updates its argument {paths} in place"


def warn_left_out(subject: str, updates: Sequence[Update], backend: str, module: str) -> None:
    """Say that the arguments of a call keep their values."""
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
    return leaf | leaf if dtype_name(leaf.dtype) == BOOL else leaf * 1


def copied_all(tree: Any) -> Any:
    """Return nested tensors each in memory of its own; of one that is there twice, one copy."""
    own: dict[int, Any] = {}
    return optree.tree_map(lambda x: own.setdefault(id(x), copied(x)), tree, none_is_leaf=True)


def check_apart(subject: str, updates: Sequence[Update], tensors: Sequence[Any]) -> None:
    """Refuse a tensor that is given twice, of which the function would see its own update.

    Raises:
        TraceError: there is one.
    """
    if any(a is b for a, b in combinations(tensors, 2)):
        raise TraceError(f"{subject} {describe(updates)} and gets one tensor twice. Copy it first")


def put_updates(
    trace: Trace,
    updates: Sequence[Update],
    graph: Graph,
    given: Mapping[str, Any],
    holders: Mapping[str, Any],
    outputs: Sequence[Any],
) -> None:
    """Update the arguments in the capture that a function is called in.

    Autodiff that was not told of an update takes the derivative of the argument as it was.

    Args:
        graph: its forward.
        given: what the graph's inputs are there.
        holders: the arguments by name.
        outputs: what the call gave.

    Raises:
        TraceError: an argument is a constant, or cannot be updated there.
    """
    check_apart(f"{graph.name!r}", updates, [v for v in holders.values() if isinstance(v, Value)])
    for leaf, node, output, _ in updates:
        holder = holders[leaf.name]
        if not isinstance(holder, V):
            raise trace.error(f"lets {graph.name!r} update a constant in place")
        if output is not None:
            value = outputs[output]
        else:
            (value,) = replay(trace, Graph(graph.name, graph.inputs, (node,)), given)
            value = passing_to(trace, holder.node, value.node)
        assign(holder, value)
