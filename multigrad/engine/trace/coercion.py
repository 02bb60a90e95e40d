"""What operands become that are not a rule's: constants made of arrays, integers, several dtypes.

Small integers are computed in int32. Where a library's own code is captured, `Trace.types` says in
which dtype it computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...core import ops
from ...core.backend.discovery import backend_of
from ...core.ir.graph import MOST_ELEMENTS, Node, freeze, make_node
from ...core.ir.op import (
    BOOL,
    DTYPES,
    FLOAT8,
    INT32,
    INT64,
    INT_SCALAR,
    SMALL,
    WHOLE,
    Op,
    T,
    Type,
    is_float,
)
from ...core.passes.simplify import constant
from ...core.trace.coercion import NeedsConcrete, array_node, cast_node, in_dtype
from ...core.trace.trace import Trace, Value, apply, copy_of
from ...errors import BackendNotFound


# --- constants ------------------------------------------------------------------------------------
# Constant arrays (`torch.tensor([...])`, closure values) are copied when the rule is captured: one
# that changes later does not change the rule. Their floats and integers are weak, as numbers are;
# bools stay bools.
def lift_array(trace: Trace, operand: Any) -> Node:
    """Return the node of a constant array or tensor; without axes, of its number.

    Raises:
        TraceError: it is no array of numbers, it is too large, or it waits for a gradient.
    """
    array = _read(trace, operand)
    words = f"a constant {type(operand).__name__} of shape {array.shape}"
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise trace.error(
            f"uses {words} and dtype {array.dtype}: rules compute in bool and float dtypes"
        )
    if array.size > MOST_ELEMENTS:
        raise trace.error(
            f"uses {words}, {array.size} elements, which is not captured: at most {MOST_ELEMENTS} "
            f"become part of a rule{trace.words.advise()}"
        )
    if array.ndim == 0:
        return constant(array.item())
    dtype = BOOL if array.dtype.kind == "b" else T
    node = array_node(trace.like(), freeze(array), dtype)
    # Whether a reshape of it is a view is decided by `capture/values/memory.py`.
    if not array.flags.c_contiguous:
        trace.memory.scattered.add(node)
    return node


def _read(trace: Trace, operand: Any) -> np.ndarray[Any, Any]:
    kind = type(operand).__name__
    if isinstance(operand, complex):
        raise trace.error(
            "uses a complex number: rules compute in float dtypes. Apply the rule to the real and "
            "the imaginary part"
        )
    if isinstance(operand, list | tuple):
        array = np.asarray(operand, dtype=None if _numbers_only(operand) else object)
        if array.dtype != object:
            return array
        raise trace.error(f"uses a {kind} that is no array of numbers, which is not captured")
    if getattr(operand, "requires_grad", False) is True or getattr(operand, "trainable", False):
        raise trace.error(
            f"uses a {kind} that waits for a gradient, which a rule does not give. Pass a number "
            f"as {trace.words.param}, or take the tensor's values: .detach()"
        )
    try:
        backend = backend_of(operand)
    except BackendNotFound:
        raise trace.error(
            f"uses a {kind}, which is not captured: "
            f"{trace.words.ways('write it as a Python number or an array')}"
        ) from None
    if backend.name != "numpy":
        trace.memory.lifted.append(operand)
    # Without asking `is_traced`: a compiler may be tracing while a rule makes a plain constant.
    try:
        return np.asarray(backend.tensors.to_numpy(operand))
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise trace.error(
            f"uses a {kind} whose values are known at run time only. Pass it as {trace.words.param}"
        ) from error


def _numbers_only(items: Any) -> bool:
    return all(
        _numbers_only(item)
        if isinstance(item, list | tuple)
        else isinstance(item, bool | int | float | np.generic)
        for item in items
    )


# --- operands of several dtypes -------------------------------------------------------------------
# A dtype that holds an unsigned one's numbers.
HOLDING = {"uint16": INT32, "uint32": INT64, "uint64": INT64}
WIDTHS = {"float16": 0, "bfloat16": 0, "float32": 1, "float64": 2}


def in_common_dtype(
    op: Op, nodes: list[Node], facts: Mapping[str, Any], dtype: str | None
) -> list[Node]:
    """Return operands in one dtype: that in which the library computes, or theirs.

    Bool and integer tensors are cast to the float dtype of the others, integers to the widest.

    Raises:
        TypeError: no op computes in it.
        NeedsConcrete: it depends on the input's dtype.
    """
    _refuse_eighths(nodes)
    tensors = [n for n in nodes if n.type.kind == "tensor"]
    if dtype:
        if dtype in SMALL:  # in which its operands wrap around
            others = [n for n in tensors if n.type.dtype not in (BOOL, dtype)]
            nodes = [cast_node(n, dtype) if n in others else n for n in nodes]
        return in_dtype(nodes, _computed_in(dtype))
    types = [n.type for n in tensors if n.op is not ops.ARRAY]
    floats = list(dict.fromkeys([type_.dtype for type_ in types if is_float(type_)]))
    integers = _wide_integers(nodes) if op.integer and not floats else None
    if integers:
        return in_dtype(nodes, integers if op.integer is True else str(op.integer))
    return in_dtype(nodes, _widest(floats, facts) if len(floats) > 1 else (*floats, T)[0])


def _widest(floats: list[str], facts: Mapping[str, Any]) -> str:
    """Return the widest of several float dtypes, for which the input's must be known."""
    if "dtype" not in facts and T in floats:
        raise NeedsConcrete("dtype")
    names = [facts["dtype"] if d == T else d for d in floats]
    widest = max(names, key=WIDTHS.__getitem__)
    if {"float16", "bfloat16"} <= set(names) and WIDTHS[widest] == 0:  # neither holds the other
        widest = "float32"
    return floats[names.index(widest)] if widest in names else widest


def _computed_in(dtype: str) -> str:
    """Return the dtype that tensors are cast to where a library computes in this one."""
    if dtype not in (T, *DTYPES):
        raise TypeError(f"it computes in {dtype}: cast to int64 first")
    return INT32 if dtype in SMALL else dtype


def _refuse_eighths(nodes: list[Node]) -> None:
    eighths = [node.type for node in nodes if node.type.dtype in FLOAT8]
    if eighths:
        raise TypeError(f"no op computes in {eighths[0].dtype}: cast to a float dtype first")


# --- integers, indices, and numbers as bools ------------------------------------------------------
def coerce_integers(op: Op, nodes: list[Node], dtype: str | None) -> list[Node]:
    """Return the operands of an op of integers or at indices, or bools of a library's numbers."""
    if op.coerce == "indices":
        position = op.operands.index("indices")
        node = nodes[position]
        is_integer = _is_integer_array(node) or node.type.dtype in WHOLE
        if node.type.kind != "tensor" or not is_integer:
            raise TypeError(f"it needs integers as indices, not {node.type}: cast to int64 first")
        index = node if node.type.dtype == INT64 else cast_node(node, INT64)
        return [*nodes[:position], index, *nodes[position + 1 :]]
    _refuse_eighths(nodes)
    if op.coerce == "bool":  # in every library a number other than 0 is true
        return [node if node.type.dtype == BOOL else _is_true(node) for node in nodes]
    computed = _computed_in(dtype) if dtype else _wide_integers(nodes) or INT32
    for node in nodes:
        if node.type.dtype not in (*WHOLE, "int") and not _is_integer_array(node):
            raise TypeError(f"it needs integers, not {node.type}: cast to int32 first")
    return in_dtype(nodes, computed)


def _is_true(node: Node) -> Node:
    # Where a tensor is not 0; a constant number is decided now.
    if node.op is ops.CONST:
        return constant(bool(node.attr("value")))
    zero = make_node(ops.CONST, (), {"value": 0}, INT_SCALAR)
    wide = cast_node(node, INT32) if node.type.dtype in SMALL else node
    return make_node(ops.NE, (wide, zero), {}, Type("tensor", BOOL, node.type.shape))


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
        return _promote(tensors)
    # Constants are weak, but an overflow with them only matters in small dtypes.
    arrays = {n.attr("value").dtype for n in nodes if n.op is ops.ARRAY and n.type.dtype == T}
    return _promote([*tensors, *(str(HOLDING.get(kind, kind)) for kind in arrays - {BOOL})])


def _promote(dtypes: Iterable[str]) -> str | None:
    """Return the integer dtype that holds all of these, or None if there are none."""
    names = set(dtypes)
    for dtype in (INT64, INT32):
        if dtype in names:
            return dtype
    # int8 and uint8 together need 16 bits.
    return "int16" if "int16" in names or len(names) > 1 else next(iter(names), None)


# --- small integers -------------------------------------------------------------------------------
# Ops whose low bits depend only on the low bits of the operands: they may overflow.
MODULAR = (
    ops.ADD,
    ops.SUB,
    ops.MUL,
    ops.NEG,
    ops.WHERE,
    ops.BITWISE_AND,
    ops.BITWISE_OR,
    ops.BITWISE_XOR,
    ops.BITWISE_INVERT,
    ops.BITWISE_LEFT_SHIFT,
    ops.BITWISE_RIGHT_SHIFT,
)


def result_of_small(op: Op, nodes: list[Node], library_dtype: str | None) -> str | None:
    """Return the small integer dtype of a result that is computed in int32; None: it has none."""
    small = library_dtype or _integer_dtype(nodes)
    if small not in SMALL:
        return None
    if not (op.integer or op.coerce == "int"):
        if op is ops.POW and library_dtype is None:
            raise TypeError(f"it computes in floats, not {small}: cast to int32 first")
        return None
    for node in nodes if op not in MODULAR else ():
        if node.type.kind == "scalar" and node.type.dtype == "int":
            number = node.attr("value") if node.op is ops.CONST else None
            if number is None or not _fits(number, small):
                words = "a length" if number is None else number
                raise TypeError(f"{words} beside {small}: cast to int32 first")
    return small


def _fits(number: int, dtype: str) -> bool:
    bits = int(dtype.removeprefix("u").removeprefix("int"))
    low = 0 if dtype.startswith("u") else -(2 ** (bits - 1))
    return low <= number < low + 2**bits


def power_of_integer(a: Value, b: float) -> Any:
    if type(b) is int and b == 0:
        dtype = a.node.type.dtype
        return apply(ops.FULL_LIKE, a, 1, dtype=INT32 if dtype == BOOL else dtype)
    if type(b) is int and b < 0:
        raise TypeError(
            f"an integer is raised to the power {b}, which every library refuses: make it a float"
        )
    if not (type(b) is int and 0 < b <= 64):
        return apply(ops.POW, a, b)
    power, exponent = a, b - 1
    square = a
    while exponent:
        power = power * square if exponent & 1 else power
        exponent >>= 1
        square = square * square if exponent else square
    return copy_of(power) if b == 1 else power
