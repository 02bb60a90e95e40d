"""Attributes that code sets on tensors (`out._scale = s`).

On its own framework the function runs itself. Elsewhere they are left out, and captured code that
reads one is refused there. Inside another capture, they are set on the symbols there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ....capture.dialect import registered_dialects
from ....graph import ops
from ....graph.ir.graph import Graph, walk
from ....trace.derived.custom_calls import replay
from ....trace.trace import Trace, Value
from ....trace.xp import all as xp
from ..arguments import owner_of

Tensor = Any
PLAIN = (bool, int, float, str, type(None))

# By backend, the names of attributes that results there lack.
left_out: set[tuple[str, str]] = set()


class Note(NamedTuple):
    """An attribute that was set.

    Attributes:
        holder: whose it is: an argument by name, an output by position.
        name: its name.
        value: a plain one, a node of the forward, or a holder.
        kind: which of them: "plain", "node", "holder".
    """

    holder: str | int
    name: str
    value: Any
    kind: str


def find_notes(trace: Trace, inputs: Mapping[str, Any], outputs: Sequence[Any]) -> tuple[Note, ...]:
    """Return the attributes that the code has set on its arguments and on its outputs.

    Raises:
        TraceError: one is neither a tensor that it computed nor a plain value.
    """
    holders: dict[str | int, Any] = {**inputs, **dict(enumerate(outputs))}
    holders = {key: value for key, value in holders.items() if isinstance(value, Value)}
    notes: list[Note] = []
    hints = tuple(
        hint for dialect in registered_dialects().values() for hint in dialect.classes.hints
    )
    for holder, owner in holders.items():
        for name, value in (owner.notes or {}).items():
            if name in ("grad", "requires_grad"):  # which every framework decides by itself
                continue
            if name.startswith(hints):
                continue
            key_of_value = next((key for key, other in holders.items() if other is value), None)
            if key_of_value is not None:
                notes.append(Note(holder, name, key_of_value, "holder"))
            elif isinstance(value, Value):
                notes.append(Note(holder, name, value.node, "node"))
            elif isinstance(value, PLAIN):
                notes.append(Note(holder, name, value, "plain"))
            else:
                whose = "its argument" if isinstance(holder, str) else "what it returns"
                raise trace.error(
                    f"sets an attribute {name!r} of {whose} to a {type(value).__name__}, which no "
                    "graph has"
                )
    return tuple(notes)


def put_notes(
    trace: Trace,
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

    Raises:
        TraceError: an attribute is a tensor whose gradient is not known, or of a constant.
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


def attribute_of(name: str, value: Tensor) -> bool | None:
    """Return whether an argument has an attribute; None: it may have lost it."""
    if hasattr(value, name):
        return True
    owner = owner_of(value)
    return None if owner is not None and (owner.name, name) in left_out else False
