"""What arithmetic means where all operands are bools: it stays among them, or is an error.

With a number beside them, and in sums, bools are 0 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.graph import Node
from ..ir.op import Op, Refused
from ..ir.types import BOOL


def on_bools(op: Op, operands: Sequence[Node]) -> tuple[Op, bool]:
    """Return the op to record for these operands, and whether its result is to be made bools.

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
