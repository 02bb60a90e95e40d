"""A graph run again inside another capture: its ops are recorded anew, on values of any shape and
dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import ops
from ..ir.graph import Graph, Node
from ..ir.types import T
from .trace import Trace, Value, apply


def replay(trace: Trace, graph: Graph, given: Mapping[str, Any]) -> list[Any]:
    """Record a graph's ops in a trace and return its outputs.

    Args:
        given: a symbolic value (or a number, for a scalar) for each input by name.
    """
    own = next((n.attr("name") for n in graph.inputs if n.type.dtype == T), None)
    first = given.get(own) if own is not None else None
    dtype = first.node.type.dtype if isinstance(first, Value) else T
    done: dict[Node, Any] = {}
    for node in graph.nodes:
        if node.op is ops.INPUT:
            done[node] = given[node.attr("name")]
        elif node.op is ops.CONST:
            done[node] = node.attr("value")
        else:
            attrs = dict(node.attrs)
            if attrs.get("dtype") == T:
                attrs["dtype"] = dtype
            done[node] = apply(node.op, *(done[operand] for operand in node.operands), **attrs)
            where = graph.locations.get(node)
            if where is not None and isinstance(done[node], Value):
                trace.locations.setdefault(done[node].node, where)
    return [done[node] for node in graph.outputs]
