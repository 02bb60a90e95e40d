"""Simplification of graphs, rebuilding them with nodes replaced, and ops on Python numbers.

Common subexpressions and dead code need no pass: nodes are hash-consed and a graph holds only what
its outputs need. Each rewrite is a row of `REWRITES`, with the ops that it may fit, and keeps every
bit of every value, NaN, infinities and signed zeros included.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from .. import ops
from ..ir.graph import Graph, Node, make_node, with_operands
from ..ir.op import (
    BOOL,
    BOOL_SCALAR,
    FLOAT_SCALAR,
    INPUT_SHAPE,
    INT_SCALAR,
    PER_ELEMENT,
    SCALAR_SHAPE,
    Op,
)
from ..ops.table import Number

# --- ops on Python numbers: a parameter with another parameter or with a constant ----------------
# Division by zero and overflow give inf and NaN as everywhere in the IR, never an exception.


def constant(number: Any) -> Node:
    if isinstance(number, bool):
        return make_node(ops.CONST, (), {"value": number}, BOOL_SCALAR)
    # A subclass (np.float64) would appear in emitted code under its own name.
    if isinstance(number, float):
        return make_node(ops.CONST, (), {"value": float(number)}, FLOAT_SCALAR)
    return make_node(ops.CONST, (), {"value": int(number)}, INT_SCALAR)


def on_numbers(op: Op, args: tuple[Number, ...], attrs: dict[str, Any]) -> Number:
    """Return an op's result on Python numbers, by its `on_numbers` or by NumPy in float64."""
    exact = op.on_numbers
    if exact is not None and not attrs:
        return exact(*args)
    with np.errstate(all="ignore"):
        result = op.numpy(*(np.float64(a) for a in args), **attrs)
    return result.item() if hasattr(result, "item") else result


BINARY = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq,
    "!=": operator.ne, "&": operator.and_, "|": operator.or_, "^": operator.xor,
}  # fmt: skip
UNARY = {"-": operator.neg, "~": operator.invert}
REAL = (float, int)


def symbol_function(op: Op) -> Callable[..., Any] | None:
    return (UNARY if len(op.operands) == 1 else BINARY).get(op.symbol or "")


@functools.lru_cache(maxsize=1024)
def scalar_function(
    op: Op, native: Callable[..., Any], opened: Callable[[Any], Any] | None = None
) -> Callable[..., Any]:
    """Return a function that computes an op on Python numbers here, and on others by `native`.

    `native` gets its arguments as `opened` returns them.
    """
    exact = op.on_numbers

    def call(*args: Any, **attrs: Any) -> Any:
        for a in args:
            if not isinstance(a, float | int):
                arguments = args if opened is None else map(opened, args)
                return native(*arguments, **attrs)
        return exact(*args) if exact is not None and not attrs else on_numbers(op, args, attrs)

    def call_two(a: Any, b: Any) -> Any:
        # Two Python floats are the common case on the hot path.
        if type(a) is float and type(b) is float:
            return exact(a, b)  # type: ignore[misc]
        return call(a, b)

    # Without a further call, because limits and quotients of numbers are in every backward.
    def call_maximum(a: Any, b: Any) -> Any:
        if type(a) is float and type(b) is float:
            return b if b > a or b != b else a  # noqa: PLR0124 (NaN)
        return call(a, b)

    def call_minimum(a: Any, b: Any) -> Any:
        if type(a) is float and type(b) is float:
            return b if b < a or b != b else a  # noqa: PLR0124 (NaN)
        return call(a, b)

    def call_divide(a: Any, b: Any) -> Any:
        return a / b if type(a) in REAL and type(b) in REAL and b else call(a, b)

    def call_root(a: Any) -> Any:
        return math.sqrt(a) if type(a) is float and a >= 0 else call(a)

    special = {
        ops.MAXIMUM: call_maximum,
        ops.MINIMUM: call_minimum,
        ops.DIV: call_divide,
        ops.SQRT: call_root,
    }.get(op)
    general = call_two if exact is not None and len(op.operands) == 2 else call
    function = general if special is None else special
    function.__name__ = f"scalar_{op.name}"
    function.scalar_of = op, native  # type: ignore[attr-defined]  (by which a file has its own form)
    return function


# --- rewrites ------------------------------------------------------------------------------------
Rewrite = Callable[[Node, Node | None], Node | None]


def fold_constants(node: Node, grad_out: Node | None) -> Node | None:
    # A scalar op of constants is a constant.
    if node.type.kind != "scalar" or any(o.op is not ops.CONST for o in node.operands):
        return None
    numbers = tuple(operand.attr("value") for operand in node.operands)
    return constant(on_numbers(node.op, numbers, dict(node.attrs)))


def drop_unit(node: Node, grad_out: Node | None) -> Node | None:
    # x * 1 and x / 1 are x; not x + 0, which loses the sign of -0.
    a, b = node.operands
    if b.op is ops.CONST and b.attr("value") == 1 and a.type == node.type:
        return a
    is_product = node.op is ops.MUL and a.op is ops.CONST
    return b if is_product and a.attr("value") == 1 and b.type == node.type else None


def drop_double(node: Node, grad_out: Node | None) -> Node | None:
    # -(-x) is x, and ~~m is m.
    (inner,) = node.operands
    return inner.operands[0] if inner.op is node.op else None


def subtract(node: Node, grad_out: Node | None) -> Node | None:
    # -a + b and b + -a are b - a.
    for negative, other in (node.operands, node.operands[::-1]):
        if negative.op is ops.NEG and negative.type == node.type == other.type:
            return make_node(ops.SUB, (other, negative.operands[0]), {}, node.type)
    return None


def drop_cast(node: Node, grad_out: Node | None) -> Node | None:
    # A cast to a value's own dtype does nothing; a mask cast twice is cast once.
    inner = node.operands[0]
    if inner.type.dtype == node.type.dtype:
        return inner
    if inner.op is ops.CAST and inner.operands[0].type.dtype == BOOL and node.type.dtype != BOOL:
        return make_node(ops.CAST, inner.operands, dict(node.attrs), node.type)
    return None


def drop_slope(node: Node, grad_out: Node | None) -> Node | None:
    # A comparison of |x| needs no slope at 0, which where(x == 0, x + 0.0, |x|) has.
    operands = tuple([magnitude_of(operand) or operand for operand in node.operands])
    if operands == node.operands:
        return None
    return make_node(node.op, operands, dict(node.attrs), node.type)


def magnitude_of(node: Node) -> Node | None:
    """Return |x| if a node is |x| with a slope of 1 at 0, else None."""
    if node.op is not ops.WHERE:
        return None
    is_zero, at_zero, magnitude = node.operands
    if (is_zero.op, at_zero.op, magnitude.op) != (ops.EQ, ops.ADD, ops.ABS):
        return None
    (x,) = magnitude.operands
    is_fit = (
        node.type == magnitude.type
        and is_zero.operands == (x, constant(0))
        and at_zero.operands == (x, constant(0.0))
    )
    return magnitude if is_fit else None


def drop_reshape(node: Node, grad_out: Node | None) -> Node | None:
    # Summing or broadcasting to a value's own shape does nothing.
    x, like = node.operands
    return x if x.type.shape == like.type.shape == INPUT_SHAPE else None


def take_shape_from_cotangent(node: Node, grad_out: Node | None) -> Node | None:
    # A shape is read from grad_out where possible, so that no residual is kept for it.
    if grad_out is None or grad_out.type.shape != INPUT_SHAPE:
        return None
    operands = list(node.operands)
    for position in node.op.shape_only:
        # A draw also takes the dtype of its `like`.
        is_same_dtype = not node.op.random or operands[position].type.dtype == grad_out.type.dtype
        if is_same_dtype and operands[position].type.shape == INPUT_SHAPE:
            operands[position] = grad_out
    if tuple(operands) == node.operands:
        return None
    return make_node(node.op, operands, dict(node.attrs), node.type)


# Each rewrite with the ops that it may fit. An op may have others of its own.
REWRITES: Mapping[Rewrite, Sequence[Op]] = {
    drop_unit: (ops.MUL, ops.DIV),
    drop_double: (ops.NEG, ops.NOT),
    subtract: (ops.ADD,),
    drop_cast: (ops.CAST,),
    drop_slope: (ops.LT, ops.LE, ops.GT, ops.GE, ops.EQ, ops.NE),
    drop_reshape: (ops.SUM_TO, ops.BROADCAST_TO),
}


@functools.cache
def rewrites_for(op: Op, is_scalar: bool = True) -> list[Rewrite]:
    """Return the rewrites of nodes of an op, in the order in which they are tried."""
    if not op.operands:
        return []
    rewrites = [fold_constants] if is_scalar else []
    rewrites += [rewrite for rewrite, fitting in REWRITES.items() if op in fitting]
    if op.shape_only:
        rewrites.append(take_shape_from_cotangent)
    return [*rewrites, *op.rewrites]


def simplify(graph: Graph) -> Graph:
    """Apply every rewrite, operands first, until none fits."""
    grad_out = graph.input("grad_out")

    def change(node: Node) -> Node:
        for rewrite in rewrites_for(node.op, node.type.kind == "scalar"):
            replacement = rewrite(node, grad_out)
            if replacement is not None:
                return change(replacement)
        return node

    return rebuild(graph, change)


def rebuild(
    graph: Graph,
    change: Callable[[Node], Node],
    replacements: Mapping[Node, Node] = MappingProxyType({}),
) -> Graph:
    """Return the graph with each node, its operands already replaced, passed to `change`.

    Nodes without operands are unchanged, and those in `replacements` replaced as these say.
    """
    new_nodes: dict[Node, Node] = dict(replacements)
    locations = dict(graph.locations)
    for node in graph.nodes:
        if node not in new_nodes:
            new_nodes[node] = node
            if node.operands:
                operands = tuple(map(new_nodes.__getitem__, node.operands))
                candidate = node if operands == node.operands else with_operands(node, operands)
                new_nodes[node] = change(candidate)
        if node in graph.locations:
            # The first location wins, where several nodes became one.
            locations.setdefault(new_nodes[node], graph.locations[node])
    outputs = tuple(map(new_nodes.__getitem__, graph.outputs))
    if outputs == graph.outputs and not graph.origin:
        return graph
    return Graph(graph.name, graph.inputs, outputs, locations)


def substitute(graph: Graph, replacements: Mapping[Node, Node]) -> Graph:
    """Return the graph with nodes replaced; replacements below a replaced node do not count."""
    if replacements.keys().isdisjoint(graph.nodes):
        return replace(graph, origin="") if graph.origin else graph
    return rebuild(graph, lambda node: node, replacements)


def rename_inputs(graph: Graph, names: Mapping[str, str]) -> Graph:
    new_inputs: dict[Node, Node] = {}
    for node in graph.inputs:
        name = node.attr("name")
        if name in names:
            new_inputs[node] = make_node(ops.INPUT, (), {"name": names[name]}, node.type)
    body = substitute(graph, new_inputs)
    return replace(body, inputs=tuple(new_inputs.get(node, node) for node in graph.inputs))


def is_elementwise(graph: Graph) -> bool:
    """Return whether each element of the results depends on the same element of the inputs only."""
    for node in graph.nodes:
        is_local = node.op.result in PER_ELEMENT and node.type.shape in (INPUT_SHAPE, SCALAR_SHAPE)
        if not is_local and node.op not in (ops.INPUT, ops.CONST):
            return False
    return True


# --- the memory of results ------------------------------------------------------------------------
# Where others may write to a tensor, `MEMORY` nodes say where the code makes a copy.
COPY, ALIAS = "copy", "alias"
# Ops that return their operand itself where there is nothing to do.
PASSING = frozenset(("cast", "sum_to", "broadcast_to", "all_sum", "all_max"))


def nodes_of(graph: Graph, op: Op) -> Sequence[Node]:
    """Return the nodes of an op."""
    return [node for node in graph.nodes if node.op is op] if op in graph.ops else ()


def is_layout(node: Node) -> bool:
    """Return whether a node is its operand, copied if its order in memory is another."""
    return node.op is ops.MEMORY and node.attr("how").startswith("contiguous")


def passed(node: Node) -> Node:
    """Return the node whose tensor this one may be, itself if it is always another tensor."""
    while is_layout(node) or node.op.name in PASSING:
        (operand, *_) = node.operands
        # A cast to or from bool always makes another tensor.
        if (operand.type.dtype == BOOL) != (node.type.dtype == BOOL):
            break
        node = operand
    return node


def without_memory(graph: Graph) -> Graph:
    """Return a graph for tensors that nobody writes to, where a copy is the tensor itself."""
    return without(graph, ops.MEMORY)


def without(graph: Graph, op: Op, is_meant: Callable[[Node], bool] | None = None) -> Graph:
    """Return a graph with the operand of each node of an op in its place; `is_meant`: of which."""
    # Again until there is none, because such a node may have been computed from another.
    while nodes := [*filter(is_meant, nodes_of(graph, op))]:
        graph = substitute(graph, {node: node.operands[0] for node in nodes})
    return graph
