"""How what a function computes lies in memory, as far as that follows from how its arguments do:
whether a reshape of it is a view, so that a write into the one reaches the other.

With operands in order, elementwise functions give results in order, in torch and in NumPy.
"""

from __future__ import annotations

import weakref
from typing import Any

from ...graph import ops
from ...graph.ir.graph import Node
from ...graph.ops import results
from ...trace.trace import NeedsConcrete, Trace, Value, copy_of, mark_view

ELEMENTWISE = (
    results.cast_to,
    results.chosen,
    results.compared,
    results.elementwise,
    results.filled,
    results.float_elementwise,
)
KEEPING = (ops.EXPAND_DIMS, ops.RESHAPE, ops.RESHAPE_LIKE, ops.SQUEEZE)


def maybe_same(x: Value) -> Value:
    """Return the result of `contiguous()`: the same memory if x is contiguous, else a copy.

    Which of the two matters while both tensors are alive, or, for a view, its base.
    """
    result = copy_of(x)
    if x.base is not None:
        mark_view(result, x, False)
    else:
        result.twin = weakref.ref(x)
        x.views.append(weakref.ref(result))
    return result


def in_format(x: Value, memory_format: Any) -> Value:
    """Return x in one of torch's memory formats: the same memory or a copy."""
    if str(memory_format) in ("None", "torch.preserve_format"):
        return x
    if str(memory_format) == "torch.contiguous_format":
        return maybe_same(x)
    result = copy_of(x)
    mark_view(result, x, False)  # its strides, which may be these already, are never known
    return result


def settle(value: Value) -> bool:
    """Return whether it is known which memory a value is written to, a twin's or its own."""
    twin = None if value.twin is None else value.twin()
    if twin is None:
        return True
    if not is_in_order(twin):
        return False
    value.base, value.is_certain, value.twin = twin, True, None
    return True


def is_view(view: Value) -> bool:
    """Return whether a value shares the memory of its base; what may be a copy is none where that
    is not known.
    """
    if not settle(view):
        return False
    base = view.base
    if base is not None and not view.is_certain and view.node.op in KEEPING:
        view.is_certain = is_in_order(base)
    return view.is_certain


def is_in_order(value: Value) -> bool:
    """Return whether a tensor is known to lie in memory in order (C-contiguous).

    Raises:
        NeedsConcrete: it is, where an argument does.
    """
    base = value.base
    if value.twin is not None:
        return True
    if base is None:
        return value.made.type.kind == "tensor" and _lies_in_order(value.trace, value.made)
    if not is_view(value):
        return False
    if value.node is base.node or value.node.op in KEEPING or _is_stretch(value.node):
        return is_in_order(base)
    return False


def _is_stretch(node: Node) -> bool:
    """Return whether an index takes what stands side by side: integers, then one slice at most."""
    if node.op is not ops.GETITEM:
        return False
    items = list(node.attr("index"))
    while items and isinstance(items[0], int):
        items.pop(0)
    is_slice = len(items) == 1 and isinstance(items[0], tuple)
    return not items or (is_slice and items[0][2] in (None, 1))


def _lies_in_order(trace: Trace, node: Node) -> bool:
    if node.type.kind == "scalar":
        return True
    if node.op is ops.INPUT:
        name = node.attr("name")
        if trace.kind == "rule" or (trace.backward.is_running and name.startswith("grad_out")):
            return False  # one capture serves all, and a cotangent's is known when it runs only
        fact = f"contiguous:{name}"
        if fact not in trace.facts:
            raise NeedsConcrete(fact)
        return trace.facts[fact] is True
    if node.op is ops.ARRAY:
        return node not in trace.memory.scattered
    return node.op.result in ELEMENTWISE and all(_lies_in_order(trace, n) for n in node.operands)
