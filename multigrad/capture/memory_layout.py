"""The memory layout of computed tensors, and which of them share memory.

It follows from the layout of the arguments, and decides whether a reshape is a view, so that
writing into one tensor reaches the other. In torch and NumPy, elementwise functions of contiguous
operands give contiguous results. Tests: `tests/capture/values/test_capture_views.py`,
`test_capture_view_updates.py`.

A value's `made` is the node that made its memory, before updates in place. Its `base` is the tensor
that it is a view of; its `twin` is one of which it is the same memory or a copy, not yet known.
"""

from __future__ import annotations

import weakref
from typing import Any

from ..graph import ops
from ..graph.ir.graph import Node
from ..graph.ops import results
from ..trace.trace import NeedsConcrete, Trace, Value, copy_of, mark_view

ELEMENTWISE_RESULTS = (
    results.cast_to,
    results.chosen,
    results.compared,
    results.elementwise,
    results.filled,
    results.float_elementwise,
)
# Ops that keep the order of the elements in memory.
ORDER_KEEPING = (ops.EXPAND_DIMS, ops.RESHAPE, ops.RESHAPE_LIKE, ops.SQUEEZE)


def contiguous(x: Value) -> Value:
    """Return the result of `contiguous()`: the same memory if x is contiguous, else a copy.

    Which one matters only while both tensors, or the base of a view, are alive: hence weak
    references.
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
        return contiguous(x)
    result = copy_of(x)
    mark_view(result, x, False)  # its strides, which may be these already, are never known
    return result


def resolve_twin(value: Value) -> bool:
    """Decide whether a value is a view of its twin, if that is known; return whether it is decided.

    A twin that is known to be contiguous becomes the base. One that is no longer alive does not
    matter.
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
    if base is not None and not view.is_certain and view.node.op in ORDER_KEEPING:
        view.is_certain = is_known_contiguous(base)
    return view.is_certain


def is_known_contiguous(value: Value) -> bool:
    """Return whether a tensor is known to be C-contiguous.

    Raises:
        NeedsConcrete: it is if an argument is.
    """
    base = value.base
    if value.twin is not None:
        return True
    if base is None:
        return value.made.type.kind == "tensor" and _is_made_contiguous(value.trace, value.made)
    if not is_view(value):
        return False
    # A view of a whole tensor, in its order, or of one stretch of it.
    if (
        value.node is base.node
        or value.node.op in ORDER_KEEPING
        or _is_contiguous_slice(value.node)
    ):
        return is_known_contiguous(base)
    return False


def _is_contiguous_slice(node: Node) -> bool:
    # Integers, then at most one slice of step 1, pick neighboring memory.
    if node.op is not ops.GETITEM:
        return False
    items = list(node.attr("index"))
    while items and isinstance(items[0], int):
        items.pop(0)
    is_slice = len(items) == 1 and isinstance(items[0], tuple)
    return not items or (is_slice and items[0][2] in (None, 1))


def _is_made_contiguous(trace: Trace, node: Node) -> bool:
    if node.type.kind == "scalar":
        return True
    if node.op is ops.INPUT:
        name = node.attr("name")
        if trace.kind == "rule" or (trace.backward.is_running and name.startswith("grad_out")):
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
