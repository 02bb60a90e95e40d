"""The op table: every operation of a graph, declared once, by family.

A declaration (`Op`, in `multigrad/graph/ir/op.py`) holds an op's name, operands, attributes, NumPy
meaning, VJP, result type and a line of documentation. Backends map the rows to their own callables;
passes read them; `xg.xp`, the docs and the tests are made from them.
"""

from __future__ import annotations

from ..ir.op import Op
from . import activations, arithmetic, logic, selection, special, transcendental
from .activations import *
from .arithmetic import *
from .arrays import (
    collectives,
    draws,
    factors,
    indexing,
    indices,
    linalg,
    loops,
    ordering,
    products,
    reductions,
    shapes,
)
from .arrays.collectives import *
from .arrays.draws import *
from .arrays.factors import *
from .arrays.indexing import *
from .arrays.indices import *
from .arrays.linalg import *
from .arrays.loops import *
from .arrays.ordering import *
from .arrays.products import *
from .arrays.reductions import *
from .arrays.shapes import *
from .logic import *
from .selection import *
from .special import *
from .transcendental import *

FAMILIES = (
    arithmetic, transcendental, special, activations, logic, selection, reductions, products,
    linalg, factors, shapes, indexing, ordering, indices, draws, collectives, loops,
)  # fmt: skip
OPS: dict[str, Op] = {
    row.name: row for family in FAMILIES for row in vars(family).values() if isinstance(row, Op)
}
# Tracing makes these nodes; all others are functions that a rule can call.
STRUCTURE = (INPUT, CONST, CALL, MEMORY, OUTPUT, WHILE_LOOP, SCAN)
CALLABLE_OPS: tuple[Op, ...] = tuple(row for row in OPS.values() if row not in STRUCTURE)
