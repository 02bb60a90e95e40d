"""Rules of authors' own: tangent rules as graphs, and the outputs for a rule that calls itself.

A rule may call the function that it belongs to: it gets the outputs, whose gradient is its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ...graph import ops
from ...graph.ir.graph import Graph, Node, make_node
from ...graph.ir.types import SCALAR_SHAPE, Type, is_float
from ...graph.passes.residuals import mark_output
from ...graph.passes.simplify import substitute, without_stops
from ...graph.support.trees import optree
from ...lowering.function_graph import tangent_name
from ...trace.assertions import ORDERS
from ...trace.coercion import cast_node
from ...trace.trace import Trace, Value
from ...trace.xp import all as xp
from ..calls.recipe import Pushed


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
    given: dict[Node, Node] = {}
    for argument, tangent in rule.tangents:
        name = argument.attr("name") if argument.op is ops.INPUT else None
        if name not in tensors:
            return None
        attrs = {"name": tangent_name(tensors.index(name))}
        given[tangent] = make_node(ops.INPUT, (), attrs, argument.type)
    changes = optree.tree_leaves(rule.changes, none_is_leaf=True)
    if len(changes) != len(outputs):
        return None
    results = tuple([_fit(changes[place], output).node for place, output in carried])
    name = f"tangent of {trace.name}"
    inner = substitute(Graph(name, tuple(inputs), results, trace.source.locations), given)
    whole = Graph(name, (*given.values(), *inner.inputs), inner.outputs, inner.locations)
    # No framework transposes a stop, and a tangent has no slope that it could take away.
    return without_stops(whole, [node.attr("name") for node in given.values()])


def _fit(change: Any, output: Value) -> Value:
    if not isinstance(change, Value) or change.node.type.kind == "scalar":
        return xp.full_like(output, 0.0 if change is None else change)
    dtype = output.node.type.dtype
    if change.node.type.dtype == dtype:
        return change
    return output.trace.value(cast_node(change.node, dtype))


# --- a function that its own rules call ----------------------------------------------------------


def outputs_of(name: str, found: Any, asked: Any, given: Any) -> Any:
    """Return the outputs `found` to a rule that calls its own function.

    No derivative may be taken of them if the arguments are not those of the rule.

    Args:
        asked: the arguments of this call, nested.
        given: those that the rule is recorded for, nested alike; None if they are not known.
    """
    symbols = [each for each in _flatten(asked) if isinstance(each, Value)]
    if given is not None and are_same(_flatten(asked), _flatten(given)):
        return as_outputs(found)
    if symbols:
        trace = symbols[0].trace
        trace.backward.lost_gradient = name
        trace.omit(ORDERS, f"the derivatives of {name!r} of any order")
    return found


def as_outputs(found: Any) -> Any:
    """Return the outputs of a function as its backward has them."""
    leaves, tree = optree.tree_flatten(found, none_is_leaf=True)
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
