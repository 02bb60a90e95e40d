"""Promotion as a library has it: in which dtype it computes on the operands of one op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.ir.graph import Node
from ..graph.ir.op import Op
from ..graph.ir.types import BOOL, DTYPES, FLOATS, INT32, SMALL, WHOLE, T
from .coercion import cast_node, check_numbers

Trace = Any  # of trace.py
Mark = Any  # what the library is told of an operand


def is_exact(trace: Trace) -> bool:
    """Return whether dtypes are the library's in what is recorded now."""
    return trace.types is not None and trace.types.is_active()


class Promotion:
    """How a library promotes the operands of one op."""

    __slots__ = ("floats", "marks", "types")

    def __init__(self, types: Any, operands: Sequence[Any], floats: str) -> None:
        self.types = types
        self.floats = floats  # their one dtype; "" where they have several, or others
        self.marks: Sequence[Mark] = () if self.floats else list(map(types.mark, operands))

    def small(self, op: Op, nodes: list[Node]) -> str | None:
        """Return the dtype of few bits of the result, which is computed in int32; None: no such.

        Raises:
            TypeError: a number beside them does not fit.
        """
        dtype = self.target(op) if op.integer or op.coerce == "int" else None
        if dtype is None or dtype not in SMALL:
            return None
        check_numbers(op, nodes, dtype)
        return dtype

    def wrapped(self, node: Node, op: Op) -> Node:
        """Return an operand as a dtype of few bits has it, where the library computes in one."""
        dtype = self.target(op)
        is_other = node.type.kind == "tensor" and node.type.dtype not in (BOOL, dtype)
        return cast_node(node, dtype) if dtype in SMALL and is_other else node

    def wide(self, op: Op) -> str | None:
        """Return the dtype that tensors are cast to; None: nobody tells.

        Raises:
            TypeError: graphs do not compute in it.
        """
        dtype = self.target(op)
        if dtype and dtype not in (T, *DTYPES):
            raise TypeError(f"it computes in {dtype}: cast to int64 first")
        return INT32 if dtype in SMALL else dtype

    def whole(self) -> str:
        """Return the dtype of integers in which the library computes, "" for none."""
        if self.floats:
            return ""
        expected = self.types.expected
        common = self.types.common(self.marks)
        if common == BOOL and expected in WHOLE:
            return str(expected)
        return common if common in WHOLE else ""

    def is_whole(self) -> bool:
        """Return whether the library computes in integers, and gives such."""
        return bool(self.whole()) and self.types.expected not in (T, *FLOATS)

    def filled(self) -> str:
        """Return the dtype of a tensor that is made of numbers."""
        return str(self.types.expected)

    def target(self, op: Op) -> str | None:
        if self.floats:
            return self.floats
        marks = self.marks[1:] if op.coerce == "where" else self.marks
        if not any(mark.is_tensor for mark in marks):
            # Of numbers that are compared the result's dtype says nothing.
            holds = self.types.expected != BOOL or all(mark.dtype == BOOL for mark in marks)
            return (self.types.expected or None) if holds else None
        common = self.types.common(marks)
        if not common or common in (T, *FLOATS):
            return common or None
        expected = self.types.expected
        if op.coerce in ("where", "int") or op.integer is True:
            if common == BOOL and op.coerce != "where":
                return expected if expected in WHOLE else INT32
            return common
        if op.integer:  # wide, whatever is given back
            return str(op.integer)
        return self.types.float_of(marks) or None
