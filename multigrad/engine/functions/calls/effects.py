"""What a function does besides returning, found in its capture, and done in the capture around it:
updates in place, attributes, views.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

from ....core import ops
from ....core.backend.values import owner_of
from ....core.functions.arguments import Leaf, flatten
from ....core.ir.graph import Graph, Location, Node, walk
from ....core.ir.op import BOOL, dtype_name
from ....core.lowering.derivatives import replay
from ....core.passes.simplify import ALIAS, COPY, PASSING, passed
from ....core.support.threads import set_within
from ....core.support.trees import optree
from ....core.trace.trace import Value, setting
from ....core.trace.xp import all as xp
from ....errors import TraceError
from ...capture.dialect import registered_dialects
from ...capture.values.memory import root_of
from ...capture.values.tracer import V
from ...lowering.calls import route_gradient
from ...passes.memory import in_memory, owner_of_memory
from ...trace.code_trace import CodeTrace

# --- what a variant says of them ------------------------------------------------------------------
COPIES = "xg.Capture(copies=True)"  # in messages


class Update(NamedTuple):
    """An argument that was updated.

    Attributes:
        node: what it holds afterwards.
        output: which output it has become, as autodiff sees it; None: autodiff was not told.
        where: the line that did it.
    """

    leaf: Leaf
    node: Node
    output: int | None
    where: Location | None


def describe_updates(updates: Sequence[Update]) -> str:
    paths = " and ".join(repr(update.leaf.path) for update in updates)
    return f"updates its argument {paths} in place"


class Note(NamedTuple):
    """An attribute that code has set on a tensor (`out._scale = s`).

    Attributes:
        holder: whose it is: an argument by name, an output by position.
        value: a plain one, a node of the forward, or a holder; `kind` says which.
    """

    holder: str | int
    name: str
    value: Any
    kind: str


# --- updates of arguments in place ----------------------------------------------------------------
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
            positions = [i for i, each in enumerate(outputs) if each is symbol]
            output = positions[0] if positions and is_dirty else None
            update_places, defined = symbol.trace.memory.updates, symbol.trace.source.defined
            location = None if node is None else update_places.get(node, defined)
            updates.append(Update(leaf, symbol.node, output, location))
    return tuple(updates)


def hide_updates(
    updates: Sequence[Update], symbols: Mapping[str, Any], before: Mapping[str, Node]
) -> None:
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


def put_updates(
    trace: CodeTrace,
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
        inputs, holders: what the graph's inputs are there, and the arguments, by name.
        outputs: what the call gave.
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


# --- attributes that code sets on tensors (`out._scale = s`) --------------------------------------
PLAIN = (bool, int, float, str, type(None))


def find_notes(
    trace: CodeTrace, inputs: Mapping[str, Any], outputs: Sequence[Any]
) -> tuple[Note, ...]:
    """Return the attributes that the code has set on its arguments and on its outputs."""
    holders: dict[str | int, Any] = {**inputs, **dict(enumerate(outputs))}
    holders = {key: value for key, value in holders.items() if isinstance(value, Value)}
    notes: list[Note] = []
    hints = tuple(
        hint for dialect in registered_dialects().values() for hint in dialect.classes.hints
    )
    for holder, owner in holders.items():
        for name, value in (owner.notes or {}).items():
            # Every framework decides by itself about the first two.
            if name in ("grad", "requires_grad") or name.startswith(hints):
                continue
            key_of_value = next((key for key, symbol in holders.items() if symbol is value), None)
            if key_of_value is not None:
                notes.append(Note(holder, name, key_of_value, "holder"))
            elif isinstance(value, Value):
                notes.append(Note(holder, name, value.node, "node"))
            elif isinstance(value, PLAIN):
                notes.append(Note(holder, name, value, "plain"))
            else:
                place = "its argument" if isinstance(holder, str) else "what it returns"
                raise trace.error(
                    f"sets an attribute {name!r} of {place} to a {type(value).__name__}, which no "
                    "graph has"
                )
    return tuple(notes)


def put_notes(
    trace: CodeTrace,
    notes: Sequence[Note],
    graph: Graph,
    values: Mapping[str, Any],
    holders: Mapping[str | int, Any],
    is_class: bool,
) -> None:
    """Set attributes in the capture that a function is called in.

    Args:
        graph: its forward.
        values: what the graph's inputs are there.
        holders: the arguments by name and the outputs by position, as the caller has them.
        is_class: whether it ran its forward without gradients, as what it computed then has none.
    """
    for note in notes:
        value, holder = note.value, holders[note.holder]
        if note.kind == "node":
            inputs = [node.attr("name") for node in walk((value,)) if node.op is ops.INPUT]
            if not is_class or not values.keys() >= set(inputs):
                raise trace.error(
                    f"calls {graph.name!r}, which sets an attribute {note.name!r} to a tensor that "
                    "it computed"
                )
            (value,) = replay(trace, Graph(graph.name, graph.inputs, (value,)), values)
            value = xp.stop_gradient(value) if isinstance(value, Value) else value
        elif note.kind == "holder":
            value = holders[value]
        if not isinstance(holder, Value):
            raise trace.error(f"lets {graph.name!r} set an attribute {note.name!r} of a constant")
        holder.notes = {**(holder.notes or {}), note.name: value}


# --- outputs in the memory of arguments: which are views of one, and which are copies -------------
def told_apart(graph: Graph, values: Sequence[Value], arguments: Sequence[Any]) -> Graph:
    """Return a graph whose outputs lie in the memory that the code gave these values.

    Equal values are one node, and an output that equals an argument is that argument.
    """
    if not values:  # a true derivative is no code's
        return graph
    nodes: list[Node] = []
    for value, node in zip(values, graph.outputs, strict=True):
        root, is_sure = root_of(value)
        source = owner_of_memory(node)
        others = [values[i] for i, each in enumerate(nodes) if owner_of_memory(each) is source]
        is_layout = root.how.startswith("contiguous")  # of a tensor that nobody holds
        is_own = not is_layout and not any(root is each for each in arguments)
        if is_own and source.op is ops.INPUT:  # a copy, as `x * 1`, is in no argument's memory
            node = node if root.node.op.name in PASSING else in_memory(node, COPY)
        elif is_own and any(root_of(each)[0] is not root for each in others):
            node = in_memory(node, COPY)
        elif value is not root and is_sure and (node in nodes or passed(node).op is ops.INPUT):
            node = in_memory(node, ALIAS)
        nodes.append(node)
    return replace(graph, outputs=tuple(nodes))


# --- updates of arguments in place ----------------------------------------------------------------
def warn_left_out(subject: str, updates: Sequence[Update], backend: str, module: str) -> None:
    location = next((update.where for update in updates if update.where is not None), None)
    file, line = ("<unknown>", 1) if location is None else (location.file, location.line)
    message = (
        f"{subject} {describe_updates(updates)}; captured for {backend}, it leaves the caller's as "
        f"it is. By xg.convert(..., capture={COPIES}) it does so on its own framework, too"
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
        raise TraceError(
            f"{subject} {describe_updates(updates)} and gets one tensor twice. Copy it first"
        )


# --- lists and dicts among the arguments, into which code as written may write --------------------
Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # by position, and by name

CONTAINERS = frozenset((list, dict, tuple, deque, OrderedDict, defaultdict))
# The arguments of the call that runs, where containers or another library's arrays are among them,
# and the leaves that stand for them.
GIVEN: ContextVar[tuple[Arguments, Sequence[Any]] | None] = ContextVar(
    "multigrad_given", default=None
)


def has_containers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call is given a list or a dict, or a tuple, which may hold one."""
    return not CONTAINERS.isdisjoint(map(type, (*args, *kwargs.values())))


def giving(arguments: Arguments, leaves: Sequence[Any]) -> AbstractContextManager[Any]:
    """Let an original that runs with these leaves get the caller's own arguments."""
    return set_within(GIVEN, (arguments, leaves))


def callers_own(rebuilt: Arguments, leaves: Sequence[Any]) -> Arguments:
    """Return the caller's own arguments where they have these leaves, else those rebuilt."""
    call = GIVEN.get()
    if call is None:
        return rebuilt
    arguments, known_leaves = call
    is_same = len(known_leaves) == len(leaves) and all(
        a is b for a, b in zip(known_leaves, leaves, strict=True)
    )
    return arguments if is_same else rebuilt


def changes_containers(before: Arguments, after: Arguments) -> bool:
    """Return whether code has changed a list or a dict among the arguments that it ran with."""
    # Before, these had the same leaves in containers of their own.
    (old, nesting), (new, new_nesting) = (flatten(*arguments) for arguments in (before, after))
    return nesting != new_nesting or any(a is not b for a, b in zip(old, new, strict=True))
