"""Views: what an update of one makes of the tensor that it looks at, and how a view looks anew.

A chain of views is followed link by link: each knows its base, and its node is one op of the base's
node, or that node itself.
"""

from __future__ import annotations

from typing import Any

from ...graph import ops
from ...graph.ir.graph import Node, make_node
from ...graph.ops.arrays.indexing import as_index
from ...trace.trace import Value
from ...trace.xp import all as xp
from ..indexing import indexing
from ..symbols import memory
from ..symbols.gradients import carries_gradient

# What moves every element to one other place, which its VJP undoes.
ORDERS = (ops.PERMUTE_DIMS, ops.SWAPAXES, ops.MOVEAXIS)
SHAPES = (ops.RESHAPE, ops.RESHAPE_LIKE, ops.SQUEEZE, ops.EXPAND_DIMS)


def written(view: Value, value: Value) -> Any:
    """Return what a view's base becomes where the view takes a value; None: that is not known."""
    base: Any = view.base
    node = view.node
    if not memory.is_view(view):
        return None
    if node is base.node:
        return value
    if node.op is ops.GETITEM:
        return indexing.assigned(base, as_index(node.attr("index")), value)
    if node.op in SHAPES:
        return xp.reshape_like(value, base)
    if node.op in ORDERS and node.op.vjp is not None:
        (whole,) = node.op.vjp(xp, value, view, base, **dict(node.attrs))
        return whole
    if node.op is ops.CALL:  # another name
        return value
    is_cut = node.op is ops.STOP_GRADIENT
    if is_cut and (_is_forward(view) or not carries_gradient(base.node)):
        return value
    return None


def _is_forward(view: Value) -> bool:
    """Return whether no gradient is taken through what is recorded: a class gives its own."""
    return view.trace.kind == "imported function" and not view.trace.in_backward


def looks_anew(view: Value, before: Node, after: Node) -> Node:
    """Return a view's node where that of its base has become another."""
    seen = view.node
    if seen is before:
        return after
    operands = [after if each is before else each for each in seen.operands]
    return make_node(seen.op, operands, dict(seen.attrs), seen.type)
