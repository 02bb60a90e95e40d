"""Updates in place of symbolic tensors: `x += 1`, `x[0] = 1`, `x.add_(1)`.

Nodes of a graph never change, so that an update gives the symbol another node. Each symbol that is
a view of it gets one too:

    y = x * 2     y.node = MUL(x, 2)
    v = y[0]      v.node = GETITEM(y.node, 0); v.base is y, and y.views refers to v
    v += 1        y.node = WHERE(..., v.node + 1, y.node); then v.node = GETITEM(y.node, 0)

An update of a view is written into its base, up to the symbol that owns the memory. That one gets
the new node, and its views are made anew from it. Each view is one op of its base's node, or that
node itself. `memory_layout.py` sets `base`, `twin` and `views`, and tells what is a view.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import ops
from ...graph.ir.graph import Node, make_node
from ...graph.ir.types import INPUT_SHAPE, SCALAR_SHAPE, UNKNOWN, Shape, is_float, keeps_rank
from ...graph.ops.arrays.indexing import as_index
from ...trace.trace import NeedsConcrete, Value, cast_node
from ...trace.xp import all as xp
from .. import memory_layout
from ..taken_gradients import carries_gradient
from . import indexing

# Ops that move every element to another place, which their VJP undoes.
REORDERINGS = (ops.PERMUTE_DIMS, ops.SWAPAXES, ops.MOVEAXIS)
RESHAPES = (ops.RESHAPE, ops.RESHAPE_LIKE, ops.SQUEEZE, ops.EXPAND_DIMS)


def update(target: Value, new: Value) -> None:
    """Give a tensor a new value of the same type, for all names of this tensor.

    A value of another dtype is cast and a smaller one repeated, as in every library. An update of
    `x[index]` reaches x, and an update of x reaches `x[index]`.

    Raises:
        NeedsConcrete: whose memory it is depends on a fact.
        TraceError: the types differ, or it is not known whose memory it is.
    """
    trace = target.trace
    # What is refused, or asked, first decides the message; the symbols change last.
    _check_casts(target)
    _check_views(target)
    node = _fit(target, new.node)
    _check_gradient(target)
    if target.base is None:
        if target.node.op is ops.INPUT:  # the caller would see the update
            trace.memory.updates.setdefault(target.node, trace.source.location())
        replace_node(target, node)
        return
    whole = _written_into_base(target, trace.value(node))
    if whole is None:
        advice = trace.words.advise("Call .clone() on it first")
        raise trace.error(f"updates a view of another tensor{advice}")
    update(target.base, whole)  # and with it this view


def replace_node(value: Value, node: Node) -> None:
    """Give a symbol another node, and each view of it what it shows of that."""
    before, value.node = value.node, node
    for view in _views_of(value):
        replace_node(view, _seen_through(view, before, node))


def _views_of(value: Value) -> Iterator[Value]:
    # Those that are still alive.
    for ref in value.views:
        view = ref()
        if view is not None:
            yield view


def _all_views(value: Value) -> Iterator[Value]:
    # Views of the value, directly or through another view.
    for view in _views_of(value):
        yield view
        yield from _all_views(view)


# --- what is checked ------------------------------------------------------------------------------
def _check_casts(target: Value) -> None:
    # A cast to a tensor's own dtype is no copy, so an update must know whether it is one.
    if "dtype" in target.trace.facts:
        return
    for value in (target, *_all_views(target)):
        if value.node.op is ops.CAST and value.base is not None and not value.is_certain:
            raise NeedsConcrete("dtype")


def _check_views(target: Value) -> None:
    # First the tensor itself: where it turns out to be a view, that sets its base.
    is_decided = memory_layout.resolve_twin(target)
    if not (is_decided and all(map(memory_layout.is_view, _all_views(target)))):
        raise target.trace.error(
            "updates a tensor of which it holds what may be a view or a copy. Call .clone() "
            "before the update"
        )


def _fit(target: Value, node: Node) -> Node:
    """Return a new value's node in the type of the tensor that it replaces."""
    old = target.node.type
    if node.type.kind == "tensor" and node.type.dtype != old.dtype and is_float(old):
        node = cast_node(node, old.dtype)
    if node.type.dtype == old.dtype and _may_repeat(node.type.shape, old.shape):
        node = xp.broadcast_to(target.trace.value(node), target).node
    if node.type != old:
        raise target.trace.error(f"updates a {old} in place with a {node.type}")
    return node


def _may_repeat(new_shape: Shape, old_shape: Shape) -> bool:
    # Whether a value may be smaller than the tensor; if it turns out larger, the run says so.
    is_smaller = old_shape == INPUT_SHAPE and (new_shape == SCALAR_SHAPE or keeps_rank(new_shape))
    is_open = UNKNOWN in (new_shape, old_shape) and old_shape in (INPUT_SHAPE, UNKNOWN)
    return new_shape != old_shape and (is_smaller or is_open)


def _check_gradient(target: Value) -> None:
    trace, old = target.trace, target.node
    is_paused = trace.backward.is_paused is not None and trace.backward.is_paused()
    if is_paused and old.op is not ops.INPUT and carries_gradient(old):
        problem = "updates a tensor that carries a gradient where none passes"
        raise trace.error(f"{problem}. Call .detach() on it first")


# --- up to the base, and down to the views --------------------------------------------------------
def _written_into_base(view: Value, value: Value) -> Value | None:
    """Return the base after a value is written into a view of it; None if that is not known."""
    base, node = view.base, view.node
    if base is None or not memory_layout.is_view(view):
        return None
    if node is base.node:
        return value
    if node.op is ops.GETITEM:
        return indexing.assigned(base, as_index(node.attr("index")), value)
    if node.op in RESHAPES:
        return xp.reshape_like(value, base)
    if node.op in REORDERINGS and node.op.vjp is not None:
        (whole,) = node.op.vjp(xp, value, view, base, **dict(node.attrs))
        return whole
    if node.op is ops.CALL:  # the same value under another name
        return value
    # A class gives its own gradient, so no gradient is taken through its recorded forward.
    is_forward = view.trace.kind == "imported function" and not view.trace.backward.is_running
    is_cut = node.op is ops.STOP_GRADIENT and (is_forward or not carries_gradient(base.node))
    return value if is_cut else None


def _seen_through(view: Value, before: Node, after: Node) -> Node:
    """Return a view's node, once its base has the node `after` in place of `before`."""
    seen = view.node
    if seen is before:
        return after
    operands = [after if each is before else each for each in seen.operands]
    return make_node(seen.op, operands, dict(seen.attrs), seen.type)
