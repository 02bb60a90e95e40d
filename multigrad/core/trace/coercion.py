"""Coercion of operands before an op, by nodes of their own: no framework's promotion leaks in.

What an op takes is told by its row (`Op.coerce`):

| kind | example | its operands |
|---|---|---|
| "float" | `mask * x`, `x * 2.5` | bools and integers are cast to the float dtype of the others |
| "where" | `where(mask, x, 0.0)` | a condition; then the same |
| "bool" | `a & b` | bools; in a library's code, numbers that are not 0 are true |
| "int" | `a << 1` | integers of one dtype |
| "indices" | `take(x, i)` | `i` is cast to int64, the others are as they are |
| "raw" | `reshape(x, -1)` | as they are |

Numbers stay weak: they take the dtype of the tensor that they meet. Small integers are computed in
int32. Where a library's own code is captured, `Trace.types` says in which dtype it computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import ops
from ..ir.graph import ArrayValue, Location, Node, make_node
from ..ir.op import (
    BOOL,
    DTYPES,
    FLOAT8,
    INT32,
    INT64,
    INT_SCALAR,
    SCALAR_SHAPE,
    SMALL,
    UNKNOWN,
    WHOLE,
    Op,
    Refused,
    T,
    Type,
    is_float,
    promote,
)
from ..ir.questions import note
from ..passes.simplify import constant
from ..support.lazy_modules import NEEDS_ENGINE, provided

Trace = Any  # of trace.py, which imports this module

# A dtype that holds an unsigned one's numbers.
HOLDING = {"uint16": INT32, "uint32": INT64, "uint64": INT64}


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
    eighths = [node.type for node in nodes if node.type.dtype in FLOAT8]
    if eighths and op.coerce not in ("raw", "indices"):
        raise TypeError(f"no op computes in {eighths[0].dtype}: cast to a float dtype first")
    if op.coerce == "raw":
        if op is ops.FULL_LIKE and nodes[1].type.shape != SCALAR_SHAPE:
            raise TypeError(f"it fills with one number, not {nodes[1].type}")
        return nodes
    if op.coerce == "indices":
        position = op.operands.index("indices")
        node = nodes[position]
        is_array = _is_integer_array(node)
        if node.type.kind != "tensor" or not (is_array or node.type.dtype in WHOLE):
            raise TypeError(f"it needs integers as indices, not {node.type}: cast to int64 first")
        index = node if node.type.dtype == INT64 else cast_node(node, INT64)
        return [*nodes[:position], index, *nodes[position + 1 :]]
    if op.coerce == "bool":
        if types is not None:  # in every library a number other than 0 is true
            return [node if node.type.dtype == BOOL else is_true(node) for node in nodes]
        for node in nodes:
            if node.type.dtype != "bool":
                raise TypeError(f"it needs bools, not {node.type}")
        return nodes
    if op.coerce == "int":
        computed = _computed_in(dtype) if dtype else _wide_integers(nodes) or INT32
        for node in nodes:
            if node.type.dtype not in (*WHOLE, "int") and not _is_integer_array(node):
                raise TypeError(f"it needs integers, not {node.type}: cast to int32 first")
        return in_dtype(nodes, computed)
    if op.coerce == "where":
        return _condition_and_values(op, nodes, facts, types, dtype)
    return _unify(op, nodes, facts, dtype, keep_bools=op in (ops.EQ, ops.NE))


def is_true(node: Node) -> Node:
    # Where a tensor is not 0; a constant number is decided now.
    if node.op is ops.CONST:
        return constant(bool(node.attr("value")))
    zero = make_node(ops.CONST, (), {"value": 0}, INT_SCALAR)
    wide = cast_node(node, INT32) if node.type.dtype in SMALL else node
    return make_node(ops.NE, (wide, zero), {}, Type("tensor", BOOL, node.type.shape))


def _condition_and_values(
    op: Op, nodes: list[Node], facts: Mapping[str, Any], types: Any, dtype: str | None
) -> list[Node]:
    condition, *values = nodes
    if condition.type.dtype != "bool":
        raise TypeError(f"the condition must be bool, not {condition.type}")
    if all(v.type.kind == "scalar" for v in values) and condition.type.kind == "tensor":
        # where(mask, 1.0, 0.0): a tensor of the input's dtype; of bools if both values are.
        own = BOOL if all(v.type.dtype == BOOL for v in values) else T
        own = own if types is None else str(types.expected) or own
        filled = make_node(
            ops.FULL_LIKE,
            (condition, values[0]),
            {"dtype": own},
            Type("tensor", own, condition.type.shape),
        )
        values = [filled, values[1]]
    return [condition, *_unify(op, values, facts, dtype, keep_bools=True)]


# --- to one dtype ---------------------------------------------------------------------------------
def _computed_in(dtype: str) -> str:
    """Return the dtype that tensors are cast to where a library computes in this one."""
    if dtype not in (T, *DTYPES):
        raise TypeError(f"it computes in {dtype}: cast to int64 first")
    return INT32 if dtype in SMALL else dtype


def _unify(
    op: Op, nodes: list[Node], facts: Mapping[str, Any], dtype: str | None, *, keep_bools: bool
) -> list[Node]:
    # Bool and integer tensors are cast to the float dtype of the others.
    if keep_bools and all(n.type.dtype == "bool" for n in nodes):
        return nodes
    if dtype:
        if dtype in SMALL:  # in which its operands wrap around
            tensors = [n for n in nodes if n.type.kind == "tensor"]
            others = [n for n in tensors if n.type.dtype not in (BOOL, dtype)]
            nodes = [cast_node(n, dtype) if n in others else n for n in nodes]
        return in_dtype(nodes, _computed_in(dtype))
    tensors = [n for n in nodes if n.type.kind == "tensor"]
    if all(n.type.dtype == T and n.op is not ops.ARRAY for n in tensors):
        return nodes  # as most operands are
    types = [n.type for n in tensors if n.op is not ops.ARRAY]
    floats = list(dict.fromkeys([type_.dtype for type_ in types if is_float(type_)]))
    # Several float dtypes: the widest, for which the input's must be known.
    if len(floats) > 1:
        if "dtype" not in facts and T in floats:
            raise NeedsConcrete("dtype")
        names = [facts["dtype"] if d == T else d for d in floats]
        order = {"float16": 0, "bfloat16": 0, "float32": 1, "float64": 2}
        widest = max(names, key=order.__getitem__)
        if {"float16", "bfloat16"} <= set(names) and order[widest] == 0:  # neither holds the other
            widest = "float32"
        target = floats[names.index(widest)] if widest in names else widest
    else:
        target = floats[0] if floats else T
    if not floats and op.integer and (integers := _wide_integers(nodes)):
        target = integers if op.integer is True else op.integer
    return in_dtype(nodes, target)


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


# --- integers -------------------------------------------------------------------------------------
def _is_integer_array(node: Node) -> bool:
    return node.op is ops.ARRAY and "int" in node.attr("value").dtype


def _wide_integers(nodes: list[Node]) -> str | None:
    kind = _integer_dtype(nodes)
    return INT32 if kind in SMALL else kind


def _integer_dtype(nodes: list[Node]) -> str | None:
    # The integer dtype of tensors among integers and bools; None if there are others.
    kinds = {n.attr("value").dtype if n.op is ops.ARRAY else n.type.dtype for n in nodes}
    if any("float" in kind for kind in kinds):
        return None
    tensors = {n.type.dtype for n in nodes if n.type.dtype in WHOLE}
    if not tensors or not tensors.issubset(SMALL):
        return promote(tensors)
    # Constants are weak, but an overflow with them only matters in small dtypes.
    arrays = {n.attr("value").dtype for n in nodes if n.op is ops.ARRAY and n.type.dtype == T}
    return promote([*tensors, *(str(HOLDING.get(kind, kind)) for kind in arrays - {BOOL})])


def small_result(op: Op, nodes: list[Node], library_dtype: str | None = None) -> str | None:
    """Return the small integer dtype of a result that is computed in int32; None: it has none.

    `library_dtype`: that in which a library computes; None: that of the operands.
    """
    small = library_dtype or _integer_dtype(nodes)
    return result_of_small(op, nodes, small, library_dtype) if small in SMALL else None


@provided
def result_of_small(op: Op, nodes: list[Node], small: str, library_dtype: str | None) -> str | None:
    """Return the dtype of a result of small integers."""
    raise TypeError(f"arithmetic on {small} {NEEDS_ENGINE}")


# --- arithmetic on bools --------------------------------------------------------------------------
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
