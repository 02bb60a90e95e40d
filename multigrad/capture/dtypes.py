"""The dtypes of symbolic values, and casts as the code's library defines them.

int8, uint8, int16: a float out of range is clamped, unless the library wraps around.
float8_e4m3fn: it becomes NaN, unless the library clamps. Tests: `tests/graph/test_small_dtypes.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph import ops
from ..graph.ir.graph import Node
from ..graph.ir.types import (
    BOOL,
    FLOAT8,
    FLOATS,
    FLOATS_OF_16_BITS,
    INT32,
    SMALL,
    WHOLE,
    T,
    dtype_name,
    is_float,
)
from ..trace import trace
from ..trace.trace import Value, cast_node
from ..trace.xp import all as xp
from .dialect import habits_of


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


def is_tensor_of_other_dtype(x: Any, dtype: str) -> bool:
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


LARGEST_FLOAT8_E4M3FN = 448.0  # it has no infinity


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
        x = xp.clip(x, -LARGEST_FLOAT8_E4M3FN, LARGEST_FLOAT8_E4M3FN)
    return trace.cast(x, dtype)


def cast_in_graph(value: Value, dtype: str) -> Value:
    """Return a tensor in a dtype as nodes have it, where T is the input's; a number as it is."""
    known = value.node.type.dtype
    if known == dtype or value.node.type.kind == "scalar":
        return value
    if known not in (T, *FLOATS) and dtype != BOOL:
        return value.trace.value(cast_node(value.node, dtype))
    return cast(value, dtype)


def in_dtype(x: Any, dtype: Any) -> Any:
    return x if dtype is None else cast(x, dtype)


def as_held(x: Value, value: Any) -> Any:
    """Return a value in the dtype in which x holds it: a tensor is cast if x has integers."""
    held, type_ = x.node.type, value.node.type if isinstance(value, Value) else None
    if type_ is None or type_.kind != "tensor" or held.dtype not in WHOLE:
        return value
    return value if type_.dtype == held.dtype else cast(value, held.dtype)
