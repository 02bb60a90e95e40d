"""What a captured form assumes of values, as the code asserts it: checked at a call where its
tensors are known and small.

A graph holds no assertion. Where a compiler traces, or a tensor is large, nothing is checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...backend.contract import Backend
from ...errors import PlaceError
from ...graph import ops
from ...graph.ir.graph import Node, walk
from ...graph.ir.types import FLOATS, T
from ...graph.ops.numerics import as_numpy_dtype
from .arguments import Layout
from .recipe import Variant

MOST_ELEMENTS = 4096


def is_told(node: Node, layout: Layout) -> bool:
    """Return whether a value follows from the arguments alone."""
    names = {leaf.name for leaf in layout.leaves}
    return all(each.attr("name") in names for each in walk((node,)) if each.op is ops.INPUT)


def check_assumptions(
    subject: str, variant: Variant, backend: Backend, leaves: Sequence[Any]
) -> None:
    """Check what the code asserts of the values of a call, as far as that is cheap.

    Raises:
        AssertionError, or what the code raises there: it does not hold.
    """
    layout = variant.layout
    given = {
        leaf.name: value
        for leaf, value in zip(layout.leaves, leaves, strict=True)
        if leaf.kind != "static"
    }
    for node, expected, where, kind in variant.assumed:
        arrays = read_inputs(node, given, backend)
        if arrays is not None and bool(evaluate(node, arrays, layout.dtype)) is not expected:
            at = f" ({where})" if where else ""
            line = f": {where.text!r}" if where and where.text else ""
            raise kind(f"{subject}{at} asserts what does not hold{line}")


# Ops that take and put at places, constant or not.
PLACED = (
    ops.GETITEM, ops.TAKE, ops.TAKE_AT, ops.TAKE_ALONG, ops.UNTAKE_AT, ops.UNTAKE_ALONG,
    ops.LAST_PUT,
)  # fmt: skip


def explain_places(subject: str, variant: Variant, backend: Backend, leaves: Sequence[Any]) -> None:
    """Say which index lies outside where a call failed because one does: by the meaning of the ops,
    as a framework's own error names neither the function nor its line.

    Raises:
        PlaceError: one does.
    """
    graph, layout = variant.graphs.forward, variant.layout
    given = dict(zip([leaf.name for leaf in layout.leaves], leaves, strict=True))
    zeros = {
        name: np.zeros(value.shape)
        if hasattr(value, "shape") and backend.tensors.is_traced(value)
        else value
        for name, value in given.items()
    }
    for node in graph.nodes:
        if node.op not in PLACED:
            continue
        is_static = node.op in (ops.GETITEM, ops.TAKE)  # of which shapes tell it
        arrays = read_inputs(node, zeros if is_static else given, backend, math.inf)
        if arrays is None:
            continue
        try:
            evaluate(node, arrays, layout.dtype)
        except IndexError as error:
            where = graph.locations.get(node)
            at = f" ({where})" if where else ""
            raise PlaceError(
                f"{subject}{at}: {error} ({node.op.name}). Limit the index first, as by "
                "clip(index, 0, length - 1), or mask the elements that it is not meant for"
            ) from None


def read_inputs(
    node: Node, given: Mapping[str, Any], backend: Backend, most: float = MOST_ELEMENTS
) -> dict[str, Any] | None:
    """Return the inputs of a node as arrays, None where they are not known or not small."""
    arrays: dict[str, Any] = {}
    for each in walk((node,)):
        if each.op is not ops.INPUT:
            continue
        name = each.attr("name")
        value = given.get(name)
        if value is None or backend.tensors.is_traced(value):
            return None
        is_number = isinstance(value, int | float)
        if not is_number and math.prod(value.shape) > most:
            return None
        arrays[name] = value if is_number else np.asarray(backend.tensors.to_numpy(value))
    return arrays


def evaluate(node: Node, arrays: Mapping[str, Any], dtype: str | None) -> Any:
    """Return the value of a node by the meaning of its ops."""
    done: dict[Node, Any] = {}
    with np.errstate(all="ignore"):
        for each in walk((node,)):
            if each.op is ops.INPUT:
                done[each] = arrays[each.attr("name")]
            elif each.op is ops.CONST:
                done[each] = each.attr("value")
            elif each.op is ops.CALL:
                done[each] = done[each.operands[0]]
            else:
                attrs = dict(each.attrs)
                if attrs.get("dtype") in (T, *FLOATS):
                    own = dtype if attrs["dtype"] == T else attrs["dtype"]
                    attrs["dtype"] = as_numpy_dtype(own or "float32")
                done[each] = each.op.numpy(*(done[operand] for operand in each.operands), **attrs)
    return done[node]
