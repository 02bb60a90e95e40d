"""What ops of floats are on integers, made of ops that stay among integers; arithmetic on bools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..graph import ops
from ..graph.ir.graph import Node
from ..graph.ir.op import Op, Refused
from ..graph.ir.types import BOOL

Tensor = Any
Apply = Callable[..., Any]  # of trace.py


def itself(apply: Apply, x: Tensor) -> Tensor:
    return x


def larger(apply: Apply, a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.MAXIMUM, a, b)


def smaller(apply: Apply, a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.MINIMUM, a, b)


def remainder_of_first(apply: Apply, a: Tensor, b: Tensor) -> Tensor:
    """The remainder with the sign of the dividend."""
    size = apply(ops.ABS, b) if hasattr(b, "node") else abs(b)
    if not hasattr(a, "node"):  # a number, whose sign and size stay Python's
        rest = apply(ops.REMAINDER, abs(a), size)
        return apply(ops.NEG, rest) if a < 0 else rest
    return apply(ops.MUL, apply(ops.REMAINDER, apply(ops.ABS, a), size), apply(ops.SIGN, a))


ON_INTEGERS: Mapping[Op, Callable[..., Any]] = {
    **dict.fromkeys((ops.FLOOR, ops.CEIL, ops.ROUND, ops.TRUNC), itself),
    ops.FMAX: larger,
    ops.FMIN: smaller,
    ops.FMOD: remainder_of_first,
}


def on_bools(op: Op, operands: Sequence[Node]) -> tuple[Op, bool]:
    """Return the op to record for these operands, and whether its result is to be made bools.

    Where all are bools, arithmetic stays among them, or is an error. With a number beside them, and
    in sums, bools are 0 and 1.

    Raises:
        TypeError: libraries refuse it on bools.
    """
    if {node.type.dtype for node in operands} != {BOOL}:
        return op, False
    if all(node.type.kind == "scalar" for node in operands):
        return op, False
    if isinstance(op.on_bools, Refused):
        raise TypeError(f"its operands are bools. {op.on_bools.advice}")
    return (op.on_bools if isinstance(op.on_bools, Op) else op), op.on_bools == "numbers"
