"""Decisions: where a value is rounded, compared, cast or made an index, its last bit counts.

Compilers rewrite arithmetic: `x / 3` becomes `x * (1 / 3)`, `x * y + z` is rounded once, a cast to
16 bits and back is left out. A quantizer then takes another level, and a mask another bit. So the
arithmetic that decisions read is done by exact ops, for which a backend has kernels of its own:

    round(x / s)        ─►  round(exact_div(x, s))
    x * y + z > limit   ─►  apart(x * y) + z > limit

Sums and products of many elements are not followed: the order of their terms is the framework's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .. import ops
from ..ir.graph import Graph, Node, Region, every_node, make_node
from ..ir.op import PER_ELEMENT, Op, T, is_float
from ..ops.properties import linear
from ..ops.table import by_formula, zero
from ..support.lazy_modules import provided


def named(names: str) -> frozenset[str]:
    # Ops by their names: a graph without an op need not load it.
    return frozenset(names.split())


EXACT: Mapping[Op, Op] = {
    op: op.with_fields(name=f"exact_{op.name}", symbol=None)
    for op in (ops.DIV, ops.SQRT, ops.RSQRT, ops.RECIPROCAL, ops.POW)
}
# A number over a tensor, which torch rounds twice.
NUMBER_OVER = ops.DIV.with_fields(name="exact_div_of_number", symbol=None)
# x itself, which is computed before anything that reads it; where arithmetic reads it, and else.
APART = ops.STOP_GRADIENT.with_fields(
    name="apart", vjp=by_formula("apart_vjp", ("x",), "ct"), degree=linear
)
ROUNDED = APART.with_fields(name="rounded")
EXACT_OPS = (*EXACT.values(), NUMBER_OVER, APART, ROUNDED)
ARITHMETIC = named("add sub mul div square sqrt rsqrt reciprocal pow")
# No compiler joins what these read with what reads them, or with a part of their own.
SEPARATE = named("""
    lt le gt ge eq ne round floor ceil sign heaviside clip maximum minimum fmax fmin abs where
    argmax argmin
""")
# Besides the ops whose derivative is zero everywhere.
DECIDING = named("remainder fmod frac hard_shrink threshold top_k_mask")
# Those whose elements are operands' elements.
FOLLOWED = named("""
    max min cummax cummin sort sort_like unsort median broadcast_to broadcast_to_shape reshape
    reshape_like squeeze expand_dims permute_dims swapaxes moveaxis flip roll tril triu getitem
    setitem put memory take half part tile repeat pad concatenate stack hold take_along take_at
    take_inside take_nearest windows all_max all_gather ppermute to_shard from_shard while_loop scan
    output
""")


def as_exact(rows: Mapping[Op, Any]) -> dict[Op, Any]:
    """Return kernels by the exact ops of their ops."""
    return {EXACT[op]: row for op, row in rows.items()}


def with_exact_decisions(graphs: Sequence[Graph], kernels: Collection[Op]) -> Sequence[Graph]:
    """Return graphs of one program in which exact ops compute what decisions read.

    `kernels`: the exact ops that a backend has.
    """
    exact = {}
    for node, is_joined in (_read_by_decisions(graphs) if kernels else {}).items():
        found = [op for op in (_exact(node), _around(node, is_joined)) if op in kernels]
        if found:
            exact[node] = found
    return [_rewritten(graph, exact) for graph in graphs] if exact else graphs


def _exact(node: Node) -> Op | None:
    """Return the exact op in place of a node's."""
    is_of_number = node.op is ops.DIV and node.operands[0].type.kind == "scalar"
    found = NUMBER_OVER if is_of_number else EXACT.get(node.op)
    return found if node.type.kind == "tensor" else None


def _around(node: Node, is_joined: bool) -> Op | None:
    """Return the op that keeps a node apart from what reads it."""
    rounds = node.type.kind == "tensor" and (node.op.name in ARITHMETIC or narrows(node))
    return (APART if is_joined else ROUNDED) if rounds else None


def _read_by_decisions(graphs: Sequence[Graph]) -> dict[Node, bool]:
    """Return the floats that decisions read, and what these are computed of, each with whether a
    compiler may join it with what reads it.
    """
    nodes = [node for graph in graphs for node in every_node(graph)]
    sources = sources_of_turns(nodes) if any(graph.loops for graph in graphs) else {}
    narrow = {node for node in nodes if node.op is ops.CAST and narrows(node)}
    kinds = {node.op for node in nodes}  # of the others no node is asked
    deciding = {op for op in kinds if op.vjp is zero or op is ops.CAST or op.name in DECIDING}
    stack = [
        (each, node.op is not ops.CAST and node.op.name not in SEPARATE)
        for node in nodes
        if narrow or node.op in deciding
        for each in _decided(node, narrow)
    ]
    read: dict[Node, bool] = {}
    while stack:
        node, is_joined = stack.pop()
        if read.get(node, -1) >= is_joined or not is_float(node.type):
            continue
        read[node] = is_joined
        is_moved = node.op.name in FOLLOWED or node.op in (ops.NEG, ops.CAST)
        if node.op.result in PER_ELEMENT or is_moved:
            joins = is_joined if is_moved else node.op.name not in SEPARATE
            stack += [(each, joins) for each in node.operands_read]
        stack += [(each, True) for each in sources.get(node, ())]
    return read


@provided
def sources_of_turns(nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    """Return what the inputs of loops' bodies are given, and what gives the results of loops."""
    return {}


def _decided(node: Node, narrow: Collection[Node]) -> Sequence[Node]:
    """Return the operands of which the last bit may change the result by more than itself.

    `narrow`: the nodes for which `narrows` is true.
    """
    if node.op is ops.CAST:
        is_decision = not is_float(node.type) or (node in narrow and node.type.dtype != T)
    else:
        is_zero = node.op.vjp is zero and node.op is not ops.STOP_GRADIENT
        is_decision = is_zero or node.op.name in DECIDING
    # A cast is a rounding also where it is cast back. A result that is cast to T is none.
    if is_decision:
        return node.operands_read
    return [each for each in node.operands_read if each in narrow] if narrow else ()


def narrows(node: Node) -> bool:
    """Return whether a node casts a float to another one of 16 bits or fewer; T may be any."""
    if node.op is not ops.CAST:
        return False
    old, new = node.operands[0].type, node.type
    return is_float(old) and old.dtype != new.dtype and new.dtype not in ("float32", "float64")


def _rewritten(graph: Graph, exact: Mapping[Node, Sequence[Op]]) -> Graph:
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        operands = [new[each] for each in node.operands]
        attrs = {
            name: Region(_rewritten(value.graph, exact)) if isinstance(value, Region) else value
            for name, value in node.attrs
        }
        found = exact.get(node, ())
        around = [op for op in found if op in (APART, ROUNDED)]
        op = next((op for op in found if op not in around), node.op)
        new[node] = make_node(op, operands, attrs, node.type)
        for op in around:
            new[node] = make_node(op, (new[node],), {}, node.type)
    locations = {new[node]: place for node, place in graph.locations.items() if node in new}
    outputs = tuple([new[node] for node in graph.outputs])
    return replace(graph, outputs=outputs, locations=locations)
