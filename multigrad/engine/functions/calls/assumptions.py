"""What code assumes of values, checked where tensors are known and small; and which index lies
outside, where a call failed for that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....core import ops
from ....core.backend.contract import Backend
from ....core.functions.arguments import Layout
from ....core.functions.recipe import Variant
from ....core.ir.graph import Graph, Node, walk
from ....errors import PlaceError
from ...ops.loops import run_graph
from .effects import check_apart
from .facts import closed

# Ops that read or write at indices, constant or not.
PLACED = frozenset(
    ["getitem", "take", "take_at", "take_along", "untake_at", "untake_along", "last_put"]
)
# Larger tensors are not read for a check, which would wait for the device.
MOST_ELEMENTS = 4096


def is_told(node: Node, layout: Layout) -> bool:
    names = {leaf.name for leaf in layout.leaves}
    return all(each.attr("name") in names for each in walk((node,)) if each.op is ops.INPUT)


def check_assumptions(
    subject: str, variant: Variant, backend: Backend, leaves: Sequence[Any]
) -> None:
    """Check what the code asserts of the values of a call, as far as that is cheap."""
    layout = variant.layout
    inputs = {
        leaf.name: value
        for leaf, value in zip(layout.leaves, leaves, strict=True)
        if leaf.kind != "static"
    }
    for node, expected, location, kind in variant.assumed:
        arrays = read_inputs(node, inputs, backend)
        if arrays is not None and bool(evaluate(node, arrays, layout.dtype)) is not expected:
            suffix = f" ({location})" if location else ""
            line = f": {location.text!r}" if location and location.text else ""
            raise kind(f"{subject}{suffix} asserts what does not hold{line}")


def check_call(subject: str, variant: Variant, backend: Backend, leaves: Sequence[Any]) -> None:
    """Check what code asserts of a call, and that what it updates is apart."""
    if variant.assumed:
        check_assumptions(subject, variant, backend, leaves)
    if variant.updates:
        tensors = [leaves[i] for i in variant.layout.indices("tensor")]
        check_apart(subject, variant.updates, tensors)


def explain_places(subject: str, variant: Variant, backend: Backend, leaves: Sequence[Any]) -> None:
    """Raise which index lies outside if that made a call fail.

    A framework's own error names neither function nor line, so the ops run by their meaning.
    """
    graph, layout = variant.graphs.forward, variant.layout
    inputs = dict(zip([leaf.name for leaf in layout.leaves], leaves, strict=True))
    # A traced tensor has no values, but its shape decides about constant indices.
    inputs_as_zeros = {
        name: np.zeros(closed(value.shape))
        if hasattr(value, "shape") and backend.tensors.is_traced(value)
        else value
        for name, value in inputs.items()
    }
    for node in graph.nodes:
        if node.op.name not in PLACED:
            continue
        is_static = node.op in (ops.GETITEM, ops.TAKE)  # of which shapes tell it
        arrays = read_inputs(node, inputs_as_zeros if is_static else inputs, backend, math.inf)
        if arrays is None:
            continue
        try:
            evaluate(node, arrays, layout.dtype)
        except IndexError as error:
            location = graph.locations.get(node)
            suffix = f" ({location})" if location else ""
            raise PlaceError(
                f"{subject}{suffix}: {error} ({node.op.name}). Limit the index first, as by "
                "clip(index, 0, length - 1), or mask the elements that it is not meant for"
            ) from None
        except ValueError:  # not of a place: the framework's own error says it
            continue


def read_inputs(
    node: Node, leaves: Mapping[str, Any], backend: Backend, most: float = MOST_ELEMENTS
) -> dict[str, Any] | None:
    """Return the inputs of a node as arrays, None where they are not known or not small."""
    arrays: dict[str, Any] = {}
    for each in walk((node,)):
        if each.op is not ops.INPUT:
            continue
        name = each.attr("name")
        value = leaves.get(name)
        if value is None or backend.tensors.is_traced(value):
            return None
        is_number = isinstance(value, int | float)
        if not is_number and math.prod(value.shape) > most:
            return None
        arrays[name] = value if is_number else np.asarray(backend.tensors.to_numpy(value))
    return arrays


def evaluate(node: Node, arrays: Mapping[str, Any], dtype: str | None) -> Any:
    """Return the value of a node by the meaning of its ops."""
    graph = Graph("", (), (node,))
    inputs = {each: arrays[each.attr("name")] for each in graph.nodes if each.op is ops.INPUT}
    with np.errstate(all="ignore"):
        return run_graph(graph, inputs, dtype or "float32")[0]
