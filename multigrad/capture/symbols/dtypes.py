"""The dtypes of symbolic values, and of what lies between two of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph import ops
from ...graph.ir.graph import Node
from ...graph.ir.types import BOOL, FLOATS_OF_16_BITS, WHOLE, T
from ...trace.trace import Value


def steps_between(node: Node, operands: set[Node]) -> list[Node]:
    """Return the ops from operands to a result, without casts of the operands themselves."""
    found: dict[Node, None] = {}
    stack = [node]
    while stack:
        each = stack.pop()
        is_cast = each.op is ops.CAST and each.operands[0] in operands and each is not node
        if each.operands and each not in operands and each not in found and not is_cast:
            found[each] = None
            stack.extend(each.operands)
    return list(found)


def is_tensor(x: Value) -> bool:
    return x.node.type.kind == "tensor"


def own_dtype(x: Any) -> str:
    """Return the dtype of a symbolic tensor."""
    return x.node.type.dtype if isinstance(x, Value) else ""


def is_of_16_bits(x: Any) -> bool:
    """Return whether a symbolic tensor is known to hold floats of 16 bits."""
    own = own_dtype(x)
    return x.trace.is_in(*FLOATS_OF_16_BITS) if own == T else own in FLOATS_OF_16_BITS


def is_bool(x: Any) -> bool:
    return own_dtype(x) == BOOL


def is_other(x: Any, dtype: str) -> bool:
    """Return whether a symbolic tensor has another dtype."""
    return (
        bool(dtype)
        and isinstance(x, Value)
        and x.node.type.kind == "tensor"
        and own_dtype(x) != dtype
    )


def source_dtype(x: Value) -> str:
    """Return the dtype of a tensor before its last cast."""
    return (x.node.operands[0] if x.node.op is ops.CAST else x.node).type.dtype


def is_exact_cast(narrow: str, wide: str) -> bool:
    """Return whether a cast of a result gives what computing in the other dtype gives: of masks,
    places, counts, and integers, which wrap around.
    """
    return narrow == BOOL or (narrow in WHOLE and wide in WHOLE)


def is_wider(narrow: str, wide: str) -> bool:
    """Return whether integers of one dtype are those of another."""
    return {narrow, wide} <= {*WHOLE} and np.can_cast(narrow, wide)
