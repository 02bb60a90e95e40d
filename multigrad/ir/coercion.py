"""What operands become before an op takes them: bools are cast, numbers stay weak, one dtype remains.

Every coercion is a node of its own, so that no framework's promotion rules leak in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import ops
from .graph import Node, make_node
from .ops import Op
from .types import BOOL, BOOL_SCALAR, FLOAT_SCALAR, INT_SCALAR, T, Type


class NeedFact(Exception):
    """Python needs something concrete; the capture is repeated with these facts fixed."""

    def __init__(self, *facts: str) -> None:
        super().__init__(*facts)
        self.facts = facts


def constant(number: Any) -> Node:
    """Return the node of a Python number."""
    if isinstance(number, bool):
        return make_node(ops.CONST, (), {"value": number}, BOOL_SCALAR)
    # A subclass (np.float64) would be written into emitted code under its own name.
    if isinstance(number, float):
        return make_node(ops.CONST, (), {"value": float(number)}, FLOAT_SCALAR)
    return make_node(ops.CONST, (), {"value": int(number)}, INT_SCALAR)


def coerce(op: Op, nodes: list[Node], facts: Mapping[str, Any]) -> list[Node]:
    """Return the operands as the op takes them.

    Raises:
        TypeError: they are of a kind that it does not take.
        NeedFact: whether a cast is due depends on the input's dtype.
    """
    if op.coerce == "raw":
        return nodes
    if op.coerce == "bool":
        for node in nodes:
            if node.type.dtype != "bool":
                raise TypeError(f"it needs bools, not {node.type}")
        return nodes
    if op.coerce == "where":
        condition, *values = nodes
        if condition.type.dtype != "bool":
            raise TypeError(f"the condition must be bool, not {condition.type}")
        if all(v.type.kind == "scalar" for v in values) and condition.type.kind == "tensor":
            # where(mask, 1.0, 0.0): the result is a tensor of the input's dtype
            filled = make_node(
                ops.FULL_LIKE, (condition, values[0]), {"dtype": T},
                Type("tensor", T, condition.type.shape),
            )  # fmt: skip
            values = [filled, values[1]]
        return [condition, *_unify(values, facts, keep_bools=True)]
    return _unify(nodes, facts, keep_bools=op in (ops.EQ, ops.NE))


def _unify(nodes: list[Node], facts: Mapping[str, Any], keep_bools: bool) -> list[Node]:
    """Cast bool tensors to the float dtype of the others, and check that one dtype remains."""
    if keep_bools and all(n.type.dtype == "bool" for n in nodes):
        return nodes
    floats = list(dict.fromkeys(n.type.dtype for n in nodes if _is_float_tensor(n)))
    if len(floats) > 1:
        if "dtype" not in facts and T in floats:
            raise NeedFact("dtype")
        names = [facts["dtype"] if d == T else d for d in floats]
        widest = _wider(names)
        target = floats[names.index(widest)] if widest in names else widest
    else:
        target = floats[0] if floats else T
    return [
        cast_node(n, target) if n.type.kind == "tensor" and n.type.dtype != target else n
        for n in nodes
    ]


def _is_float_tensor(node: Node) -> bool:
    return node.type.kind == "tensor" and node.type.dtype != BOOL


def _wider(names: list[str]) -> str:
    """Return the dtype that holds the others (float16 with bfloat16 gives float32)."""
    order = {"float16": 0, "bfloat16": 0, "float32": 1, "float64": 2}
    widest = max(names, key=order.__getitem__)
    return "float32" if {"float16", "bfloat16"} <= set(names) and order[widest] == 0 else widest


def cast_node(node: Node, dtype: str) -> Node:
    """Return the node cast to a dtype; `T` is the input's."""
    return make_node(ops.CAST, (node,), {"dtype": dtype}, Type("tensor", dtype, node.type.shape))
