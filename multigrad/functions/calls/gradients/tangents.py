"""Tangent rules of authors' own (`jax.custom_jvp`, a torch class's `jvp`), as graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....graph import ops
from ....graph.ir.graph import Graph, Node, make_node
from ....graph.ir.types import SCALAR_SHAPE, Type, is_float
from ....graph.passes.simplify import substitute, without_stops
from ....graph.support.class_bases import dataclass
from ....graph.support.trees import optree
from ....lowering.function_graph import tangent_name
from ....trace.coercion import cast_node
from ....trace.trace import Trace, Value
from ....trace.xp import all as xp


@dataclass(frozen=True, slots=True)
class Pushed:
    """A tangent rule of the author's own, as it ran on symbolic values.

    Attributes:
        tangents: the node of an argument with that of its tangent, for each that has one.
        changes: the tangents of the outputs, nested like them; None is zero.
        is_first: whether `Recorded.pull` is the transpose of it.
    """

    tangents: Sequence[tuple[Node, Node]]
    changes: Any
    is_first: bool = False


def make_tangent(trace: Trace, position: int, argument: Any) -> Value | None:
    """Return a symbol for an argument's tangent, of its shape; None where it has no tangent."""
    if not (isinstance(argument, Value) and has_tangent(argument.node)):
        return None
    type_ = argument.node.type
    name = f"seed {position}"  # no argument has a space in its name
    seed = trace.input(name, Type("tensor", type_.dtype, SCALAR_SHAPE)).node
    return trace.value(make_node(ops.BROADCAST_TO, (seed, argument.node), {}, type_))


def has_tangent(node: Node) -> bool:
    return node.type.kind == "tensor" and is_float(node.type)


def tangent_graph(
    trace: Trace,
    rule: Pushed,
    inputs: Sequence[Node],
    tensors: Sequence[str],
    outputs: Sequence[Any],
    carried: Sequence[tuple[int, Value]],
) -> Graph | None:
    """Return the graph of a tangent rule, see `FunctionGraph.pushed`; None: it moves no inputs.

    Args:
        inputs: those of forward.
        tensors: the names of the tensors among them, in order.
        outputs: what forward returned, as a flat list.
        carried: the outputs that carry a gradient as tensors, each with its place in that list.
    """
    tangents: dict[Node, Node] = {}
    for argument, tangent in rule.tangents:
        name = argument.attr("name") if argument.op is ops.INPUT else None
        if name not in tensors:
            return None
        attrs = {"name": tangent_name(tensors.index(name))}
        tangents[tangent] = make_node(ops.INPUT, (), attrs, argument.type)
    changes = optree.tree_leaves(rule.changes, none_is_leaf=True)
    if len(changes) != len(outputs):
        return None
    results = tuple([_fit(changes[place], output).node for place, output in carried])
    name = f"tangent of {trace.name}"
    inner = substitute(Graph(name, tuple(inputs), results, trace.source.locations), tangents)
    whole = Graph(name, (*tangents.values(), *inner.inputs), inner.outputs, inner.locations)
    # No framework transposes a stop, and a tangent has no slope that it could take away.
    return without_stops(whole, [node.attr("name") for node in tangents.values()])


def _fit(change: Any, output: Value) -> Value:
    if not isinstance(change, Value) or change.node.type.kind == "scalar":
        return xp.full_like(output, 0.0 if change is None else change)
    dtype = output.node.type.dtype
    if change.node.type.dtype == dtype:
        return change
    return output.trace.value(cast_node(change.node, dtype))
