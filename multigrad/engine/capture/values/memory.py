"""The memory of symbolic tensors: updates in place (`x += 1`, `x[0] = 1`, `x.add_(1)`), and which
tensors share memory.

Nodes of a graph never change, so that an update gives the symbol another node. Each symbol that is
a view of it gets one too:

    y = x * 2     y.node = MUL(x, 2)
    v = y[0]      v.node = GETITEM(y.node, 0); v.base is y, and y.views refers to v
    v += 1        y.node = PUT(y.node, v.node + 1, 0); then v.node = GETITEM(y.node, 0)

An update of a view is written into its base, up to the symbol that owns the memory. That one gets
the new node, and its views are made anew from it. Each view is one op of its base's node, or that
node itself. `mark_view` and the functions of the layout set `base`, `twin` and `views`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ....core import ops
from ....core.ir import op as results
from ....core.ir.graph import Graph, Node, make_node
from ....core.ir.op import INPUT_SHAPE, SCALAR_SHAPE, UNKNOWN, Shape, is_float, keeps_rank
from ....core.passes.simplify import COPY, simplify
from ....core.trace.trace import NeedsConcrete, Value, cast_node, copy_of, made_in_memory
from ....core.trace.xp import all as xp
from ...ops.indexing import as_index
from ...passes.memory import KEPT, OWN, in_memory, may_share
from ...passes.residuals import mark_output
from ...trace.code_trace import CodeTrace
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
    new_base = _written_into_base(target, trace.value(node))
    if new_base is None:
        advice = trace.words.advise("Call .clone() on it first")
        raise trace.error(f"updates a view of another tensor{advice}")
    update(target.base, new_base)  # and with it this view


def replace_node(value: Value, node: Node) -> None:
    """Give a symbol another node, and each view of it what it shows of that."""
    old_node, value.node = value.node, node
    for view in _views_of(value):
        if resolve_twin(view) and view.base is value and not _is_copied(view):
            replace_node(view, _seen_through(view, old_node, node))


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
    is_decided = resolve_twin(target)
    if not (is_decided and all(map(is_view, _all_views(target)))):
        raise target.trace.error(
            "updates a tensor of which it holds what may be a view or a copy. Call .clone() "
            "before the update"
        )


def _fit(target: Value, node: Node) -> Node:
    """Return a new value's node in the type of the tensor that it replaces."""
    type_ = target.node.type
    if node.type.kind == "tensor" and node.type.dtype != type_.dtype and is_float(type_):
        node = cast_node(node, type_.dtype)
    if node.type.dtype == type_.dtype and _may_repeat(node.type.shape, type_.shape):
        node = xp.broadcast_to(target.trace.value(node), target).node
    if node.type != type_:
        raise target.trace.error(f"updates a {type_} in place with a {node.type}")
    return node


def _may_repeat(new_shape: Shape, old_shape: Shape) -> bool:
    # Whether a value may be smaller than the tensor; if it turns out larger, the run says so.
    is_smaller = old_shape == INPUT_SHAPE and (new_shape == SCALAR_SHAPE or keeps_rank(new_shape))
    is_open = UNKNOWN in (new_shape, old_shape) and old_shape in (INPUT_SHAPE, UNKNOWN)
    return new_shape != old_shape and (is_smaller or is_open)


def _check_gradient(target: Value) -> None:
    trace, node = target.trace, target.node
    is_paused = trace.backward.is_paused is not None and trace.backward.is_paused()
    if is_paused and node.op is not ops.INPUT and carries_gradient(node):
        problem = "updates a tensor that carries a gradient where none passes"
        raise trace.error(f"{problem}. Call .detach() on it first")


# --- up to the base, and down to the views --------------------------------------------------------
def _written_into_base(view: Value, value: Value) -> Value | None:
    """Return the base after a value is written into a view of it; None if that is not known."""
    base, node = view.base, view.node
    if base is None or not is_view(view):
        return None
    if node is base.node:
        return value
    if node.op is ops.GETITEM:
        return indexing.assigned(base, as_index(node.attr("index")), value)
    if node.op in RESHAPES:
        return xp.reshape_like(value, base)
    if node.op in REORDERINGS and node.op.vjp is not None:
        (new_base,) = node.op.vjp(xp, value, view, base, **dict(node.attrs))
        return new_base
    if node.op is ops.CALL:  # the same value under another name
        return value
    # A class gives its own gradient, so no gradient is taken through its recorded forward.
    is_forward = view.trace.kind == "imported function" and not view.trace.backward.is_running
    is_cut = node.op is ops.STOP_GRADIENT and (is_forward or not carries_gradient(base.node))
    return value if is_cut else None


def _seen_through(view: Value, before: Node, after: Node) -> Node:
    """Return a view's node, once its base has the node `after` in place of `before`."""
    node = view.node
    if node is before:
        return after
    operands = [after if each is before else each for each in node.operands]
    return make_node(node.op, operands, dict(node.attrs), node.type)


# --- layout: which tensors share memory -----------------------------------------------------------
ELEMENTWISE_RESULTS = (
    results.cast_to,
    results.chosen,
    results.compared,
    results.elementwise,
    results.filled,
    results.float_elementwise,
)
IN_ORDER = "contiguous C"  # how a value is made that is its base, or a copy in C's order
# Ops that keep the order of the elements in memory.
ORDER_KEEPING = (ops.EXPAND_DIMS, ops.RESHAPE, ops.RESHAPE_LIKE, ops.SQUEEZE)


def contiguous(x: Value) -> Value:
    """Return the result of `contiguous()`: the same memory if x is contiguous, else a copy."""
    if x.base is not None or x.node.op is ops.INPUT:
        result = made_in_memory(x, IN_ORDER)
        # Nobody but the backward sees what is written to a cotangent, so it may count as one.
        result.is_certain = x.base is None and _is_cotangent(x.node)
        return result
    result = copy_of(x)
    # Weakly: which one matters only while both tensors are alive.
    result.how = f"{COPY} C" if x.how.startswith(COPY) else IN_ORDER
    result.twin = weakref.ref(x)
    x.views.append(weakref.ref(result))
    return result


def in_format(x: Value, memory_format: Any) -> Value:
    """Return x in one of torch's memory formats: the same memory or a copy."""
    if str(memory_format) in ("None", "torch.preserve_format"):
        return x
    order = order_of(memory_format)
    if order == "C":
        return contiguous(x)
    # Its strides, which may be these already, are never known.
    return made_in_memory(x, f"contiguous {order}")


def order_of(memory_format: Any) -> str:
    """Return what `ops.MEMORY` calls one of torch's memory formats, "" for x's own."""
    name = str(memory_format).rpartition(".")[2]
    return {"None": "", "preserve_format": "", "contiguous_format": "C"}.get(name, name)


def clone(x: Value, memory_format: Any = None) -> Value:
    order = order_of(memory_format) or ("C" if x.how.endswith(" C") else "")
    return made_in_memory(x, f"{COPY} {order}".rstrip())


def resolve_twin(value: Value) -> bool:
    """Decide whether a value is a view of its twin, if that is known; return whether it is decided.

    A twin that is known to be contiguous becomes the base.
    """
    twin = None if value.twin is None else value.twin()
    if twin is None:
        return True
    if not is_known_contiguous(twin):
        return False
    value.base, value.is_certain, value.twin = twin, True, None
    return True


def is_view(view: Value) -> bool:
    """Return whether a value is known to share the memory of its base."""
    if not resolve_twin(view):
        return False
    base = view.base
    if base is not None and not view.is_certain:
        if view.how == IN_ORDER:
            view.is_certain = is_known_contiguous(base)
            if not view.is_certain and _is_known_scattered(base):
                view.base, view.how, view.is_certain = None, f"{COPY} C", True
        elif view.node.op in ORDER_KEEPING:
            view.is_certain = is_known_contiguous(base)
    return view.is_certain


def _is_known_scattered(value: Value) -> bool:
    # Of an argument of a Function it is a fact; one capture of a rule serves all orders.
    node = value.made
    while node.op.result in ELEMENTWISE_RESULTS and len(node.operands) == 1:
        (node,) = node.operands
    is_argument = value.base is None and node.op is ops.INPUT
    return (
        is_argument and value.trace.facts.get(f"contiguous:{node.attr('name')}", True) is not True
    )


def is_known_contiguous(value: Value) -> bool:
    """Return whether a tensor is known to be C-contiguous; NeedsConcrete if it is if an argument
    is.
    """
    base = value.base
    if value.how.endswith(" C"):
        return True
    if base is None:
        return value.made.type.kind == "tensor" and _is_made_contiguous(value.trace, value.made)
    if not is_view(value):
        return False
    # A view of a whole tensor, in its order, or of one stretch of it.
    keeps_order = value.node is base.node or value.node.op in ORDER_KEEPING
    return (keeps_order or _is_contiguous_slice(value.node)) and is_known_contiguous(base)


def node_in_memory(value: Value) -> Node:
    """Return a value's node with `MEMORY` where the code made a copy on the way to it."""
    node, base = value.node, value.base
    if base is None:
        is_borrowed = may_share(node) or " " in value.how
        return in_memory(node, value.how) if value.how and is_borrowed else node
    below = node_in_memory(base)
    if value.how.startswith("contiguous"):
        return in_memory(below, value.how)
    return node if below is base.node else _seen_through(value, base.node, below)


def root_of(value: Value) -> tuple[Value, bool]:
    """Return the value whose memory this one may share, and whether it does so for certain.

    With a gradient: torch knows of no other view.
    """
    is_sure = True
    while value.base is not None:
        is_sure &= value.is_certain and value.node.op is not ops.STOP_GRADIENT
        value = value.base
    return value, is_sure


def own_temporaries(results: Sequence[Any], operands: Sequence[Any]) -> None:
    """Let results of a library's function that are views of what our ops made on the way be views
    of nothing, as the library's own are.
    """
    held = {id(root_of(each)[0]) for each in operands if isinstance(each, Value)}
    for result in results:
        is_view = isinstance(result, Value) and result.base is not None
        if is_view and id(root_of(result)[0]) not in held:
            result.base, result.is_certain, result.how = None, True, OWN


def held_values(made: Sequence[weakref.ref[Value]], own: Sequence[Any]) -> list[Value]:
    """Return those of the values made that live and share no memory with `own`: what code keeps."""
    ids = {*map(id, own)}
    values = [v for ref in made if (v := ref()) is not None and id(v) not in ids]
    # A cast makes a copy, but to its own dtype, where what is kept is the tensor all the same.
    # What only results are views of is held by nobody: it asks for no layouts.
    bases = {id(base) for each in own if isinstance(each, Value) for base in _bases_of(each)}
    return [
        v
        for v in values
        if v.node.op is ops.CAST or id(_owner_of(v, asks=id(v) not in bases)) not in ids
    ]


def _bases_of(value: Value) -> Iterator[Value]:
    while value.base is not None:
        value = value.base
        yield value


def _owner_of(value: Value, asks: bool) -> Value:
    # Whose memory it is as far as layouts are known: itself if it is a copy.
    while value.base is not None and not (asks and _is_copied(value)):
        value = value.base
    return value


def _is_copied(value: Value) -> bool:
    base, node = value.base, value.node
    if base is None or value.is_certain:
        return False
    if node.op is ops.FLIP:  # a view in NumPy alone
        return value.trace.dialect != "numpy"
    # What is no stretch of a whole tensor, such as a column, is copied to lie in order.
    is_turned = base.base is not None and (base.node.op in REORDERINGS or value.how == IN_ORDER)
    is_flat = node.op is ops.RESHAPE and (is_turned or len(node.attr("shape")) == 1)
    if not (is_flat or value.how == IN_ORDER) or is_view(value):
        return False
    if is_turned and base.base is not None:
        return is_known_contiguous(base.base)
    return value.base is None or _is_known_scattered(base)


@contextmanager
def given_by_forward(symbols: Sequence[Any], own: Sequence[Any]) -> Iterator[None]:
    """Let the symbols of outputs, and views of them, represent what forward gave, unless they are
    `own` arguments.
    """
    arguments = set(map(id, own))
    first_of = {id(each): (each, i) for i, each in reversed([*enumerate(symbols)])}
    outputs = [(each, each.node, i) for key, (each, i) in first_of.items() if key not in arguments]
    for symbol, node, position in outputs:
        replace_node(symbol, mark_output(node, position))
    try:
        yield
    finally:
        for symbol, node, _ in outputs:
            replace_node(symbol, node)


def mark_copies(values: Sequence[Value]) -> None:
    """Tell copies of inputs apart from these, in what is recorded next."""
    graph = Graph("kept", (), tuple(value.node for value in values), {})
    for value, node in zip(values, simplify(graph).outputs, strict=True):
        if node.op is ops.INPUT:
            replace_node(value, in_memory(node, KEPT))


def _is_contiguous_slice(node: Node) -> bool:
    # Integers and slices of one, then at most one slice of step 1, pick neighboring memory.
    if node.op is not ops.GETITEM:
        return False
    items = list(node.attr("index"))
    while items and items[-1] == (None, None, None):
        items.pop()
    while items and (isinstance(items[0], int) or _is_slice_of_one(items[0])):
        items.pop(0)
    is_slice = len(items) == 1 and isinstance(items[0], tuple)
    return not items or (is_slice and items[0][2] in (None, 1))


def _is_slice_of_one(item: object) -> bool:
    match item:
        case (int() | None as start, int(stop), None | 1):
            return stop - (start or 0) == 1 and stop != 0
    return False


def _is_cotangent(node: Node) -> bool:
    return node.op is ops.INPUT and node.attr("name").startswith("grad_out")


def _is_made_contiguous(trace: CodeTrace, node: Node) -> bool:
    if node.type.kind == "scalar":
        return True
    if node.op is ops.INPUT:
        name = node.attr("name")
        if trace.kind == "rule" or (trace.backward.is_running and _is_cotangent(node)):
            return False  # one capture serves all; a cotangent's layout is known only at run time
        fact = f"contiguous:{name}"
        if fact not in trace.facts:
            raise NeedsConcrete(fact)
        return trace.facts[fact] is True
    if node.op is ops.ARRAY:
        return node not in trace.memory.scattered
    return node.op.result in ELEMENTWISE_RESULTS and all(
        _is_made_contiguous(trace, n) for n in node.operands
    )
