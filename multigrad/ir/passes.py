"""Graph to graph: simplify. (Common subexpressions and dead code need no pass: nodes are hash-consed and a
graph holds what its outputs need.)

Each rewrite is a row of `REWRITES` and keeps every bit of every value, NaN, infinities and signed zeros included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from . import ops
from .graph import Graph, Node, make_node
from .op import cast_to, chosen, compared, elementwise, filled, float_elementwise, same
from .record import constant
from .scalars import on_numbers
from .types import BOOL, INPUT_SHAPE, ROW

ELEMENTWISE = (elementwise, float_elementwise, compared, chosen, cast_to, filled, same)
Rewrite = Callable[[Node, Node | None], Node | None]


def fold_constants(node: Node, grad_out: Node | None) -> Node | None:
    """A scalar of constants is a constant."""
    if node.type.kind != "scalar" or not node.operands:
        return None
    if any(operand.op is not ops.CONST for operand in node.operands):
        return None
    numbers = tuple(operand.attr("value") for operand in node.operands)
    return constant(on_numbers(node.op, numbers, dict(node.attrs)))


def drop_unit(node: Node, grad_out: Node | None) -> Node | None:
    """x * 1 and x / 1 are x."""
    if node.op not in (ops.MUL, ops.DIV):
        return None
    a, b = node.operands
    if _is_one(b) and a.type == node.type:
        return a
    return b if node.op is ops.MUL and _is_one(a) and b.type == node.type else None


def _is_one(node: Node) -> bool:
    return node.op is ops.CONST and node.attr("value") == 1


def drop_double(node: Node, grad_out: Node | None) -> Node | None:
    """-(-x) is x, and not not m is m."""
    if node.op in (ops.NEG, ops.NOT) and node.operands[0].op is node.op:
        return node.operands[0].operands[0]
    return None


def drop_cast(node: Node, grad_out: Node | None) -> Node | None:
    """A cast to the own dtype does nothing; a mask cast twice is cast once."""
    if node.op is not ops.CAST:
        return None
    inner = node.operands[0]
    if inner.type.dtype == node.type.dtype:
        return inner
    if inner.op is ops.CAST and inner.operands[0].type.dtype == BOOL and node.type.dtype != BOOL:
        return make_node(ops.CAST, inner.operands, dict(node.attrs), node.type)
    return None


def drop_reshape(node: Node, grad_out: Node | None) -> Node | None:
    """Summing or broadcasting to the own shape does nothing."""
    if node.op in (ops.SUM_TO, ops.BROADCAST_TO):
        x, like = node.operands
        if x.type.shape == like.type.shape == INPUT_SHAPE:
            return x
    return None


def take_shape_from_cotangent(node: Node, grad_out: Node | None) -> Node | None:
    """Where only a shape is read, read it off grad_out, so that no residual is kept for it."""
    if grad_out is None or grad_out.type.shape != INPUT_SHAPE:
        return None
    operands = list(node.operands)
    for position in ops.SHAPE_ONLY.get(node.op, ()):
        # A draw also takes the dtype of what it is like.
        alike = not node.op.random or operands[position].type.dtype == grad_out.type.dtype
        if alike and operands[position].type.shape == INPUT_SHAPE:
            operands[position] = grad_out
    if tuple(operands) == node.operands:
        return None
    return make_node(node.op, operands, dict(node.attrs), node.type)


REWRITES: tuple[Rewrite, ...] = (
    fold_constants,
    drop_unit,
    drop_double,
    drop_cast,
    drop_reshape,
    take_shape_from_cotangent,
)


def simplify(graph: Graph) -> Graph:
    """Apply every rewrite, operands first, until none fits."""
    grad_out = graph.input("grad_out")
    return rebuild(graph, lambda node: rewrite(node, grad_out))


def rewrite(node: Node, grad_out: Node | None) -> Node:
    """Apply rewrites to one node until none fits."""
    changed = True
    while changed:
        changed = False
        for rule in REWRITES:
            better = rule(node, grad_out)
            if better is not None and better is not node:
                node, changed = better, True
    return node


def rebuild(graph: Graph, change: Callable[[Node], Node]) -> Graph:
    """Return the graph with every node, operands already replaced, passed through `change`."""
    done: dict[Node, Node] = {}
    locations = dict(graph.locations)
    for node in graph.nodes():
        operands = tuple(done[operand] for operand in node.operands)
        copy = node if operands == node.operands else _with_operands(node, operands)
        done[node] = change(copy)
        if node in graph.locations:
            locations.setdefault(done[node], graph.locations[node])
    return Graph(graph.name, graph.inputs, tuple(done[n] for n in graph.outputs), locations)


def _with_operands(node: Node, operands: tuple[Node, ...]) -> Node:
    attrs = dict(node.attrs)
    return make_node(node.op, operands, attrs, node.op.result(*(o.type for o in operands), **attrs))


def substitute(graph: Graph, replacements: Mapping[Node, Node]) -> Graph:
    """Return the graph with nodes replaced, whatever is replaced below them."""
    done: dict[Node, Node] = dict(replacements)
    locations = dict(graph.locations)
    for node in graph.nodes():
        if node not in done:
            operands = tuple(done[operand] for operand in node.operands)
            done[node] = node if operands == node.operands else _with_operands(node, operands)
        if node in graph.locations:
            locations.setdefault(done[node], graph.locations[node])
    return Graph(graph.name, graph.inputs, tuple(done[n] for n in graph.outputs), locations)


def rename_inputs(graph: Graph, names: Mapping[str, str]) -> Graph:
    """Return the graph with inputs under other names."""
    renamed: dict[Node, Node] = {}
    for node in graph.inputs:
        name = node.attr("name")
        if name in names:
            renamed[node] = make_node(ops.INPUT, (), {"name": names[name]}, node.type)
    inner = substitute(graph, renamed)
    inputs = tuple(renamed.get(node, node) for node in graph.inputs)
    return Graph(inner.name, inputs, inner.outputs, inner.locations)


def is_elementwise(graph: Graph) -> bool:
    """Return whether each element of the results depends on that element of the inputs alone."""
    return all(
        node.op in (ops.INPUT, ops.CONST)
        or (node.op.result in ELEMENTWISE and node.type.shape in (INPUT_SHAPE, ROW))
        for node in graph.nodes()
    )
