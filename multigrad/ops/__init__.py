"""The op table: every operation of the rule IR, declared once, by family.

A declaration holds an op's name, operands, attributes, NumPy meaning, VJP, result type, a line of
documentation and what else is to be known of it (`Op`, in `multigrad/ir/op.py`). Backends map the
rows to their own callables; passes read them; `xg.xp`, docs and tests are made from them.

May import the rooms up to `ir`; docs/architecture.md has their order.
"""

from __future__ import annotations

from ..ir.op import Op
from . import (
    activations,
    arithmetic,
    collectives,
    convolutions,
    draws,
    factors,
    indexing,
    indices,
    linalg,
    logic,
    loops,
    ordering,
    products,
    quantiles,
    reductions,
    selection,
    shapes,
    special,
    structure,
    transcendental,
)
from .activations import *
from .arithmetic import *
from .collectives import *
from .convolutions import *
from .draws import *
from .factors import *
from .indexing import *
from .indices import *
from .linalg import *
from .logic import *
from .loops import *
from .ordering import *
from .products import *
from .quantiles import *
from .reductions import *
from .selection import *
from .shapes import *
from .special import *
from .structure import *
from .transcendental import *

FAMILIES = (
    arithmetic, transcendental, special, activations, logic, selection, reductions, products,
    convolutions, linalg, factors, shapes, indexing, ordering, indices, quantiles, draws,
    collectives, loops, structure,
)  # fmt: skip
OPS: dict[str, Op] = {
    row.name: row for family in FAMILIES for row in vars(family).values() if isinstance(row, Op)
}
STRUCTURE = (
    structure.INPUT, structure.CONST, structure.CALL, structure.OUTPUT, loops.WHILE_LOOP,
)  # fmt: skip
CALLABLE_OPS: tuple[Op, ...] = tuple(row for row in OPS.values() if row not in STRUCTURE)
