"""Coercion of operands before an op, by nodes of their own: no framework's promotion leaks in.

What an op takes is told by its row (`Op.coerce`):

| kind | example | its operands |
|---|---|---|
| "float" | `mask * x`, `x * 2.5` | bools and integers are cast to the float dtype of the others |
| "where" | `where(mask, x, 0.0)` | a condition; then the same |
| "bool" | `a & b` | bools; in a library's code, numbers that are not 0 are true |
| "raw" | `reshape(x, -1)` | as they are |
| "int" | `a << 1` | integers of one dtype |
| "indices" | `take(x, i)` | `i` is cast to int64, the others are as they are |

Numbers stay weak: they take the dtype of the tensor that they meet. Rules have floats of one dtype
and bools; the last two kinds, and operands of other dtypes, are the engine's
(`engine/trace/coercion.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import ops
from ..ir.graph import ArrayValue, Location, Node, make_node
from ..ir.op import BOOL, FLOATS, SCALAR_SHAPE, SMALL, UNKNOWN, Op, Refused, T, Type
from ..ir.questions import note
from ..support.lazy_modules import NEEDS_ENGINE, provided

Trace = Any  # of trace.py, which imports this module
OF_RULES = (T, *FLOATS)  # the float dtypes of tensors, of which a rule has one at a time


class NeedsConcrete(Exception):
    """Python needs something concrete; the capture is repeated with these facts fixed.

    `noted`: whether a symbol was asked, which the user's code may hide by catching the error; False
    if we ask between captures.
    """

    def __init__(self, *facts: str, noted: bool = True) -> None:
        super().__init__(*facts)
        self.facts = facts
        self.place: Location | None = None  # the line that asked, once the capture has ended
        if noted:
            note(self)


# --- by the kind of the op ------------------------------------------------------------------------
def coerce(
    op: Op,
    nodes: list[Node],
    facts: Mapping[str, Any],
    types: Any = None,
    dtype: str | None = None,
) -> list[Node]:
    """Return the operands as the op takes them.

    Args:
        facts: of the capture, in which the input's dtype may be known.
        types: what the library says whose call is recorded, if it is known.
        dtype: that in which the library computes, if it is known.

    Raises:
        TypeError: the op does not take operands of their kind.
        NeedsConcrete: whether a cast is due depends on the input's dtype.
    """
    if op.coerce == "raw":
        if op is ops.FULL_LIKE and nodes[1].type.shape != SCALAR_SHAPE:
            raise TypeError(f"it fills with one number, not {nodes[1].type}")
        return nodes
    if op.coerce == "float":
        return _in_one_dtype(op, nodes, facts, dtype, keep_bools=op in (ops.EQ, ops.NE))
    if op.coerce == "where":
        condition, *values = nodes
        if condition.type.dtype != BOOL:
            raise TypeError(f"the condition must be bool, not {condition.type}")
        if all(v.type.kind == "scalar" for v in values) and condition.type.kind == "tensor":
            # where(mask, 1.0, 0.0): a tensor of the input's dtype; of bools if both values are.
            own = BOOL if all(v.type.dtype == BOOL for v in values) else T
            own = own if types is None else str(types.expected) or own
            filled = Type("tensor", own, condition.type.shape)
            likes = (condition, values[0])
            values[0] = make_node(ops.FULL_LIKE, likes, {"dtype": own}, filled)
        return [condition, *_in_one_dtype(op, values, facts, dtype, keep_bools=True)]
    if op.coerce == "bool" and types is None:
        for node in nodes:
            if node.type.dtype != BOOL:
                raise TypeError(f"it needs bools, not {node.type}")
        return nodes
    return coerce_integers(op, nodes, dtype)


@provided
def coerce_integers(op: Op, nodes: list[Node], dtype: str | None) -> list[Node]:
    """Return the operands of an op of integers or at indices, or bools of a library's numbers."""
    raise TypeError(f"an op of integers {NEEDS_ENGINE}")


def _in_one_dtype(
    op: Op, nodes: list[Node], facts: Mapping[str, Any], dtype: str | None, *, keep_bools: bool
) -> list[Node]:
    if keep_bools and all(node.type.dtype == BOOL for node in nodes):
        return nodes
    tensors = [node for node in nodes if node.type.kind == "tensor"]
    dtypes = {node.type.dtype for node in tensors} - {BOOL}
    is_of_rules = len(dtypes) < 2 and dtypes.issubset(OF_RULES)
    if dtype or not is_of_rules or any(node.op is ops.ARRAY for node in tensors):
        return in_common_dtype(op, nodes, facts, dtype)
    return in_dtype(nodes, dtypes.pop() if dtypes else T)


@provided
def in_common_dtype(
    op: Op, nodes: list[Node], facts: Mapping[str, Any], dtype: str | None
) -> list[Node]:
    """Return operands of several dtypes in one: that in which the library computes, or theirs."""
    raise TypeError(f"arithmetic on tensors beside floats of one dtype {NEEDS_ENGINE}")


def are_floats(nodes: list[Node]) -> bool:
    """Return whether there are tensors, all of the input's dtype, as most are."""
    has_tensors = False
    for node in nodes:
        if node.type.kind == "tensor":
            has_tensors = True
            if node.type.dtype != T or node.op is ops.ARRAY:
                return False
    return has_tensors


def in_dtype(nodes: list[Node], dtype: str) -> list[Node]:
    """Return tensors' nodes in a dtype; numbers stay weak."""
    for i, node in enumerate(nodes):
        if node.type.dtype != dtype and node.type.kind == "tensor":
            nodes = [*nodes[:i], cast_node(node, dtype), *nodes[i + 1 :]]
    return nodes


def cast_node(node: Node, dtype: str) -> Node:
    """Return the node cast to a dtype; `T` is the input's. A constant is made in that dtype."""
    if node.op is ops.ARRAY and dtype != BOOL:
        return array_node(node.operands[0], node.attr("value"), dtype)
    return make_node(ops.CAST, (node,), {"dtype": dtype}, Type("tensor", dtype, node.type.shape))


# --- the dtype that a result is cast to -----------------------------------------------------------
def small_result(op: Op, nodes: list[Node], library_dtype: str | None = None) -> str | None:
    """Return the small integer dtype of a result that is computed in int32; None: it has none.

    `library_dtype`: that in which a library computes; None: that of the operands.
    """
    dtypes = [library_dtype] if library_dtype else [node.type.dtype for node in nodes]
    has_small = any(dtype in SMALL for dtype in dtypes)
    return result_of_small(op, nodes, library_dtype) if has_small else None


@provided
def result_of_small(op: Op, nodes: list[Node], library_dtype: str | None) -> str | None:
    """Return the dtype of a result of small integers."""
    raise TypeError(f"arithmetic on small integers {NEEDS_ENGINE}")


def on_bools(op: Op, operands: Sequence[Node]) -> tuple[Op, bool]:
    """Return the op to record for these operands, and whether its result becomes bools.

    If all are bools, arithmetic stays among them, or is an error. With a number, and in sums, bools
    are 0 and 1.
    """
    if {node.type.dtype for node in operands} != {BOOL}:
        return op, False
    if all(node.type.kind == "scalar" for node in operands):
        return op, False
    if isinstance(op.on_bools, Refused):
        raise TypeError(f"its operands are bools. {op.on_bools.advice}")
    return (op.on_bools if isinstance(op.on_bools, Op) else op), op.on_bools == "numbers"


def is_exact(trace: Trace) -> bool:
    """Return whether the dtypes recorded now are the library's own."""
    return trace.types is not None and trace.types.is_active()


# --- constants ------------------------------------------------------------------------------------
def array_node(like: Node, value: ArrayValue, dtype: str) -> Node:
    attrs = {"dtype": dtype, "value": value}
    return make_node(ops.ARRAY, (like,), attrs, Type("tensor", dtype, UNKNOWN))


@provided
def lift_array(trace: Trace, operand: Any) -> Node:
    """Return the node of a constant array or tensor: plain code has none."""
    raise trace.error(f"uses a {type(operand).__name__}, which {NEEDS_ENGINE}")
