"""What arithmetic means where all its operands are bools: in every library it stays among them, or is an error.

With a number beside them, and in sums, bools are 0 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import ops
from .graph import Node
from .ops import Op
from .types import BOOL

LOGIC: dict[Op, Op] = {
    ops.ADD: ops.OR, ops.MAXIMUM: ops.OR, ops.FMAX: ops.OR, ops.MAX: ops.ANY,
    ops.MUL: ops.AND, ops.MINIMUM: ops.AND, ops.FMIN: ops.AND, ops.MIN: ops.ALL,
}  # fmt: skip
# Computed on 0 and 1, and bools again.
AS_NUMBERS = frozenset({
    ops.ABS, ops.CEIL, ops.CONCATENATE, ops.CUMMAX, ops.CUMMIN, ops.EINSUM, ops.FLOOR, ops.MATMUL,
    ops.NAN_TO_NUM, ops.SORT, ops.STACK, ops.TRUNC,
})  # fmt: skip
NUMBERS = "Cast to a float dtype first"
REFUSED: dict[Op, str] = {
    ops.SUB: "Write a ^ b for where they differ", ops.NEG: "Write ~x for the contrary",
    ops.FLOOR_DIVIDE: NUMBERS, ops.FMOD: NUMBERS, ops.RECIPROCAL: NUMBERS, ops.REMAINDER: NUMBERS,
    ops.SIGN: NUMBERS,
}  # fmt: skip


def on_bools(op: Op, operands: Sequence[Node]) -> tuple[Op, bool]:
    """Return the op to record for these operands, and whether its result is to be made bools.

    Raises:
        TypeError: libraries refuse it on bools.
    """
    types = [node.type for node in operands]
    if any(t.dtype != BOOL for t in types) or all(t.kind == "scalar" for t in types):
        return op, False
    if op in REFUSED:
        raise TypeError(f"its operands are bools. {REFUSED[op]}")
    return LOGIC.get(op, op), op in AS_NUMBERS
