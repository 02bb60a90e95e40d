"""The op table: every operation of the rule IR, declared once.

A row gives the name, operands, attributes, infix symbol, how operands are coerced, the result's type, the NumPy
meaning, the VJP and one line of documentation (`op.py`). The rows stand by family in `elementwise.py` and
`arrays.py`. Backends map these rows to their own callables; docs, tests and the command line read the same table.
"""

from __future__ import annotations

from . import arrays as array_rows
from . import elementwise as elementwise_rows
from .arrays import *
from .elementwise import *
from .op import OPS, Op

STRUCTURE = (elementwise_rows.INPUT, elementwise_rows.CONST)
CALLABLE_OPS: tuple[Op, ...] = tuple(row for row in OPS.values() if row not in STRUCTURE)
# Ops with an operand that gives a shape (and a dtype) only: its values are not read.
SHAPE_ONLY: dict[Op, tuple[int, ...]] = {
    elementwise_rows.FULL_LIKE: (0,), array_rows.SUM_TO: (1,), array_rows.BROADCAST_TO: (1,), array_rows.DIM: (0,),
    array_rows.SIZE: (0,), array_rows.UNIFORM_LIKE: (1,), array_rows.NORMAL_LIKE: (1,),
}  # fmt: skip
