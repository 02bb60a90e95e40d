"""What operands become before an op takes them: bools are cast, numbers stay weak, one dtype
remains.

Every coercion is a node of its own, so that no framework's promotion rules leak in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import ops
from ..ir.graph import Node, make_node
from ..ir.op import Op
from ..ir.questions import note
from ..ir.types import BOOL, INT32, INT64, INTEGERS, SCALAR_SHAPE, T, Type, is_float
from .constants import array_node


class NeedsConcrete(Exception):
    """Python needs something concrete; the capture is repeated with these facts fixed.

    `noted`: it is asked of a symbol, which the user's code may hide; not where we ask for it
    between captures.
    """

    def __init__(self, *facts: str, noted: bool = True) -> None:
        super().__init__(*facts)
        self.facts = facts
        if noted:
            note(self)


def coerce(op: Op, nodes: list[Node], facts: Mapping[str, Any]) -> list[Node]:
    """Return the operands as the op takes them.

    Raises:
        TypeError: they are of a kind that it does not take.
        NeedsConcrete: whether a cast is due depends on the input's dtype.
    """
    if op.coerce == "raw":
        if op is ops.FULL_LIKE and nodes[1].type.shape != SCALAR_SHAPE:
            raise TypeError(f"it fills with one number, not {nodes[1].type}")
        return nodes
    if op.coerce == "indices":
        at = op.operands.index("indices")
        return [*nodes[:at], _places(nodes[at]), *nodes[at + 1 :]]
    if op.coerce == "bool":
        for node in nodes:
            if node.type.dtype != "bool":
                raise TypeError(f"it needs bools, not {node.type}")
        return nodes
    if op.coerce == "int":
        target = _integers(nodes) or INT32
        for node in nodes:
            if node.type.dtype not in (*INTEGERS, "int") and not _is_integer_array(node):
                raise TypeError(f"it needs integers, not {node.type}: cast to int32 first")
        return _in_dtype(nodes, target)
    if op.coerce == "where":
        condition, *values = nodes
        if condition.type.dtype != "bool":
            raise TypeError(f"the condition must be bool, not {condition.type}")
        if all(v.type.kind == "scalar" for v in values) and condition.type.kind == "tensor":
            # where(mask, 1.0, 0.0): the result is a tensor of the input's dtype; of two bools, of
            # bools
            dtype = BOOL if all(v.type.dtype == BOOL for v in values) else T
            filled = make_node(
                ops.FULL_LIKE,
                (condition, values[0]),
                {"dtype": dtype},
                Type("tensor", dtype, condition.type.shape),
            )
            values = [filled, values[1]]
        return [condition, *_unify(op, values, facts, keep_bools=True)]
    return _unify(op, nodes, facts, keep_bools=op in (ops.EQ, ops.NE))


def _places(node: Node) -> Node:
    """Return integers as the places that they are.

    Raises:
        TypeError: they are no integers.
    """
    is_array = _is_integer_array(node)
    if node.type.kind != "tensor" or not (is_array or node.type.dtype in INTEGERS):
        raise TypeError(f"it needs integers as indices, not {node.type}: cast to int64 first")
    return node if node.type.dtype == INT64 else cast_node(node, INT64)


def _unify(op: Op, nodes: list[Node], facts: Mapping[str, Any], keep_bools: bool) -> list[Node]:
    """Cast bool and integer tensors to the float dtype of the others: one dtype remains."""
    if keep_bools and all(n.type.dtype == "bool" for n in nodes):
        return nodes
    types = [n.type for n in nodes if n.type.kind == "tensor" and n.op is not ops.ARRAY]
    floats = list(dict.fromkeys([type_.dtype for type_ in types if is_float(type_)]))
    if len(floats) > 1:
        if "dtype" not in facts and T in floats:
            raise NeedsConcrete("dtype")
        names = [facts["dtype"] if d == T else d for d in floats]
        widest = _wider(names)
        target = floats[names.index(widest)] if widest in names else widest
    else:
        target = floats[0] if floats else T
    if not floats and op.integer and (own := _integers(nodes)):
        target = own if op.integer is True else op.integer
    return _in_dtype(nodes, target)


def _in_dtype(nodes: list[Node], dtype: str) -> list[Node]:
    """Return tensors' nodes in a dtype; numbers stay weak."""
    return [
        cast_node(node, dtype) if node.type.kind == "tensor" and node.type.dtype != dtype else node
        for node in nodes
    ]


def _is_integer_array(node: Node) -> bool:
    """Return whether a node is a constant array of integers, which become what they meet."""
    return node.op is ops.ARRAY and "int" in node.attr("value").dtype


def _integers(nodes: list[Node]) -> str | None:
    """Return the wider integer dtype of tensors among integers and bools; None: these are not."""
    kinds = {n.attr("value").dtype if n.op is ops.ARRAY else n.type.dtype for n in nodes}
    if any("float" in kind for kind in kinds):
        return None
    return max((n.type.dtype for n in nodes if n.type.dtype in INTEGERS), default=None)


def _wider(names: list[str]) -> str:
    """Return the dtype that holds the others (float16 with bfloat16 gives float32)."""
    order = {"float16": 0, "bfloat16": 0, "float32": 1, "float64": 2}
    widest = max(names, key=order.__getitem__)
    return "float32" if {"float16", "bfloat16"} <= set(names) and order[widest] == 0 else widest


def cast_node(node: Node, dtype: str) -> Node:
    """Return the node cast to a dtype; `T` is the input's. A constant is made in that dtype."""
    if node.op is ops.ARRAY and dtype != BOOL:
        return array_node(node.operands[0], node.attr("value"), dtype)
    return make_node(ops.CAST, (node,), {"dtype": dtype}, Type("tensor", dtype, node.type.shape))
