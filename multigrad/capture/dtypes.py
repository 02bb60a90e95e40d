"""The dtypes of symbolic values, casts as the code's library defines them, and memory layouts.

A float beyond the range of int8, uint8 or int16 is cast to the nearest of their numbers, one beyond
float8_e4m3fn to NaN, unless the library wraps the former around or limits the latter.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ..graph import ops
from ..graph.ir.graph import Node
from ..graph.ir.types import (
    BOOL,
    FLOAT8,
    FLOATS_OF_16_BITS,
    INT32,
    INT64,
    SMALL,
    WHOLE,
    T,
    dtype_name,
    is_float,
)
from ..graph.ops import results
from ..trace import trace
from ..trace.trace import NeedsConcrete, Trace, Value, copy_of, mark_view
from ..trace.xp import all as xp
from .dialect import habits_of

# --- the memory layout of computed tensors --------------------------------------------------------
# It follows from the layout of the arguments, and decides whether a reshape is a view, so that
# writing into one tensor reaches the other. In torch and NumPy, elementwise functions of contiguous
# operands give contiguous results.
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
        return maybe_same(x)
    result = copy_of(x)
    mark_view(result, x, False)  # its strides, which may be these already, are never known
    return result


def settle(value: Value) -> bool:
    """Return whether it is known if a value is written to its own memory or to its twin's."""
    twin = None if value.twin is None else value.twin()
    if twin is None:
        return True
    if not is_in_order(twin):
        return False
    value.base, value.is_certain, value.twin = twin, True, None
    return True


def is_view(view: Value) -> bool:
    """Return whether a value is known to share the memory of its base."""
    if not settle(view):
        return False
    base = view.base
    if base is not None and not view.is_certain and view.node.op in KEEPING:
        view.is_certain = is_in_order(base)
    return view.is_certain


def is_in_order(value: Value) -> bool:
    """Return whether a tensor is known to be C-contiguous.

    Raises:
        NeedsConcrete: it is if an argument is.
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
    # Integers, then at most one slice of step 1, pick neighboring memory.
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
            return False  # one capture serves all; a cotangent's layout is known only at run time
        fact = f"contiguous:{name}"
        if fact not in trace.facts:
            raise NeedsConcrete(fact)
        return trace.facts[fact] is True
    if node.op is ops.ARRAY:
        return node not in trace.memory.scattered
    return node.op.result in ELEMENTWISE and all(_lies_in_order(trace, n) for n in node.operands)


def steps_between(node: Node, operands: set[Node]) -> list[Node]:
    """Return the ops between operands and a result, without casts of the operands themselves."""
    steps: dict[Node, None] = {}
    stack = [node]
    while stack:
        each = stack.pop()
        is_cast = each.op is ops.CAST and each.operands[0] in operands and each is not node
        if each.operands and each not in operands and each not in steps and not is_cast:
            steps[each] = None
            stack.extend(each.operands)
    return list(steps)


def is_tensor(x: Value) -> bool:
    return x.node.type.kind == "tensor"


def own_dtype(x: Any) -> str:
    return x.node.type.dtype if isinstance(x, Value) else ""


def is_of_16_bits(x: Any) -> bool:
    """Return whether a symbolic tensor is known to hold floats of 16 bits."""
    dtype = own_dtype(x)
    return x.trace.facts.has_dtype(*FLOATS_OF_16_BITS) if dtype == T else dtype in FLOATS_OF_16_BITS


def is_bool(x: Any) -> bool:
    return own_dtype(x) == BOOL


def is_other(x: Any, dtype: str) -> bool:
    return (
        bool(dtype)
        and isinstance(x, Value)
        and x.node.type.kind == "tensor"
        and own_dtype(x) != dtype
    )


def source_dtype(x: Value) -> str:
    return (x.node.operands[0] if x.node.op is ops.CAST else x.node).type.dtype


def is_exact_cast(narrow: str, wide: str) -> bool:
    # Casting the result equals computing in the wider dtype: true of masks, and of integers, which
    # wrap around.
    return narrow == BOOL or (narrow in WHOLE and wide in WHOLE)


def is_wider(narrow: str, wide: str) -> bool:
    return {narrow, wide} <= {*WHOLE} and np.can_cast(narrow, wide)


LARGEST = 448.0  # the largest float8_e4m3fn, which has no infinity


def cast(x: Any, dtype: Any) -> Any:
    """Return x in another dtype, cast as the code's library does."""
    name = dtype_name(dtype)
    if not isinstance(x, Value) or not is_float(x.node.type) or name not in (*SMALL, *FLOAT8):
        return trace.cast(x, dtype)
    habits = habits_of(x.trace)
    # Through int32, whose low bits are kept: the wrapped number.
    if name in SMALL and habits.small_integers_wrap:
        x = trace.cast(x, INT32)
    if name == FLOAT8[0] and habits.float8_is_limited and x.node.type.dtype not in FLOAT8:
        x = xp.clip(x, -LARGEST, LARGEST)
    return trace.cast(x, dtype)


def in_dtype(x: Any, dtype: Any) -> Any:
    return x if dtype is None else cast(x, dtype)


def as_held(x: Value, value: Any) -> Any:
    """Return a value in the dtype in which x holds it: a tensor is cast if x has integers."""
    held, type_ = x.node.type, value.node.type if isinstance(value, Value) else None
    if type_ is None or type_.kind != "tensor" or held.dtype not in WHOLE:
        return value
    return value if type_.dtype == held.dtype else cast(value, held.dtype)


def to_dtype(dtype: str) -> Callable[[Any], Any]:
    def to(x: Any, *, memory_format: Any = None) -> Any:
        return in_format(cast(x, dtype), memory_format)

    return to


DTYPES = {
    "bfloat16": "bfloat16",
    "bool": BOOL,
    "byte": "uint8",
    "char": "int8",
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "int": INT32,
    "long": INT64,
    "short": "int16",
}
METHODS = {name: to_dtype(dtype) for name, dtype in DTYPES.items()}
