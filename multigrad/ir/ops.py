"""The op table: every operation of the rule IR, declared once.

A row gives the name, operands, attributes, infix symbol, how operands are coerced, the result's type, the NumPy
meaning, the VJP and one line of documentation (`op.py`). The rows stand by family in `elementwise.py`,
`activations.py`, `arrays.py`, `ordering.py` and `shapes.py`. Backends map these rows to their own callables; docs, tests and the command line
read the same table.
"""

from __future__ import annotations

from . import arrays as array_rows
from . import elementwise as elementwise_rows
from . import shapes as shape_rows
from .activations import *
from .arrays import *
from .elementwise import *
from .op import OPS, Op
from .ordering import *
from .shapes import *

STRUCTURE = (elementwise_rows.INPUT, elementwise_rows.CONST, elementwise_rows.CALL)
CALLABLE_OPS: tuple[Op, ...] = tuple(row for row in OPS.values() if row not in STRUCTURE)
# Arithmetic that stays in int32 where all its operands are integers; other ops take the float dtype.
INTEGER_OPS: tuple[Op, ...] = (
    elementwise_rows.ADD, elementwise_rows.SUB, elementwise_rows.MUL, elementwise_rows.NEG,
    elementwise_rows.ABS, elementwise_rows.MAXIMUM, elementwise_rows.MINIMUM,
    elementwise_rows.LT, elementwise_rows.LE, elementwise_rows.GT, elementwise_rows.GE,
    elementwise_rows.EQ, elementwise_rows.NE, elementwise_rows.WHERE,
)  # fmt: skip
# Ops with an operand that gives a shape (and a dtype) only: its values are not read.
SHAPE_ONLY: dict[Op, tuple[int, ...]] = {
    elementwise_rows.FULL_LIKE: (0,), array_rows.SUM_TO: (1,), array_rows.BROADCAST_TO: (1,), array_rows.DIM: (0,),
    array_rows.SIZE: (0,), array_rows.ARRAY: (0,), array_rows.UNIFORM_LIKE: (1,), array_rows.NORMAL_LIKE: (1,),
    array_rows.BERNOULLI_LIKE: (1,), array_rows.RADEMACHER_LIKE: (1,), array_rows.EXPONENTIAL_LIKE: (1,),
    array_rows.GUMBEL_LIKE: (1,), array_rows.MATMUL_LEFT: (2,), array_rows.MATMUL_RIGHT: (2,),
    **shape_rows.TRANSPOSED,
}  # fmt: skip
