"""A graph run again inside another capture: its ops are recorded anew, on values of any shape and
dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..graph import ops
from ..graph.ir.graph import Graph, Node, Region, make_node
from ..graph.ir.types import UNKNOWN, T, Type
from .trace import Trace, Value, apply


def replay(
    trace: Trace, graph: Graph, given: Mapping[str, Any], outputs: Mapping[int, Any] | None = None
) -> list[Any]:
    """Record a graph's ops in a trace and return its outputs.

    Args:
        given: a symbolic value (or a number, for a scalar) for each input by name.
        outputs: what forward gave, where the graph is a backward that reads it.
    """
    name = next((n.attr("name") for n in graph.inputs if n.type.dtype == T), None)
    first = given.get(name) if name is not None else None
    dtype = first.node.type.dtype if isinstance(first, Value) else T
    done: dict[Node, Any] = {}
    for node in graph.nodes:
        if node.op is ops.INPUT:
            done[node] = given[node.attr("name")]
        elif node.op is ops.CONST:
            done[node] = node.attr("value")
        elif node.op is ops.OUTPUT:
            own = (outputs or {}).get(node.attr("position"))
            done[node] = done[node.operands[0]] if own is None else own
        else:
            attrs = dict(node.attrs)
            if attrs.get("dtype") == T:
                attrs["dtype"] = dtype
            if node.op in (ops.WHILE_LOOP, ops.SCAN):
                attrs |= _retyped(trace, node, [done[operand].node for operand in node.operands])
            done[node] = apply(node.op, *(done[operand] for operand in node.operands), **attrs)
            where = graph.locations.get(node)
            if where is not None and isinstance(done[node], Value):
                trace.locations.setdefault(done[node].node, where)
    return [done[node] for node in graph.outputs]


def _retyped(trace: Trace, node: Node, operands: Sequence[Node]) -> dict[str, Region]:
    """Return the regions of a loop, of the types of its operands here."""
    regions = {name: value for name, value in node.attrs if isinstance(value, Region)}
    for name, region in regions.items():
        inputs = [
            make_node(ops.INPUT, (), dict(own.attrs), _as_given(own.type, operand.type))
            for own, operand in zip(region.graph.inputs, operands, strict=True)
        ]
        given = {each.attr("name"): trace.value(each) for each in inputs}
        outputs = tuple(value.node for value in replay(trace, region.graph, given))
        regions[name] = Region(Graph(name, tuple(inputs), outputs))
    return regions


def _as_given(own: Type, given: Type) -> Type:
    """Return the type of a region's input for a value; one shape less is told where it may be
    another.
    """
    shape = own.shape if own.shape == given.shape else UNKNOWN
    return Type(given.kind, given.dtype, shape)
