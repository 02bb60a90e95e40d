"""The op table: every operation of a graph, declared once, by family.

A declaration (`Op`, in `multigrad/core/ir/op.py`) holds an op's name, operands, attributes, NumPy
meaning, VJP, result type and a line of documentation. Backends map the rows to their own callables;
passes read them; `xg.xp`, the docs and the tests are made from them. Rules need the families that
are imported here. The others are loaded when one of their rows is asked for by name, as
`ops.MATMUL`, or all rows are: `OPS`, by name; `CALLABLE_OPS`, the functions; `FAMILIES`.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...errors import suggest
from ..ir.op import Op
from ..support.lazy_modules import NEEDS_ENGINE, provided
from . import activations, arithmetic, reductions, selection, shapes
from .activations import *
from .arithmetic import *
from .reductions import *
from .selection import *
from .shapes import *

if TYPE_CHECKING:
    from ...engine.ops.collectives import *
    from ...engine.ops.draws import *
    from ...engine.ops.elementary import *
    from ...engine.ops.factors import *
    from ...engine.ops.indexing import *
    from ...engine.ops.indices import *
    from ...engine.ops.linalg import *
    from ...engine.ops.loops import *
    from ...engine.ops.ordering import *
    from ...engine.ops.orders import *
    from ...engine.ops.products import *
    from ...engine.ops.units import *

    FAMILIES: tuple[ModuleType, ...]
    OPS: dict[str, Op]
    CALLABLE_OPS: tuple[Op, ...]


def rows_in(families: tuple[ModuleType, ...]) -> dict[str, Op]:
    rows = (row for family in families for row in vars(family).values() if isinstance(row, Op))
    return {row.name: row for row in rows}


def callable_rows(rows: dict[str, Op]) -> tuple[Op, ...]:
    # Tracing makes the other nodes; these are functions that a rule can call.
    made_by_tracing = (INPUT, CONST, CALL, MEMORY, OUTPUT)
    return tuple(row for row in rows.values() if row not in made_by_tracing and not row.loop)


CORE_FAMILIES = arithmetic, activations, selection, reductions, shapes
CORE_OPS = callable_rows(rows_in(CORE_FAMILIES))


@provided
def list_families() -> tuple[ModuleType, ...]:
    """Return the families in the order of the table: those of the core."""
    return CORE_FAMILIES


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    families = list_families()
    rows = rows_in(families)
    table: dict[str, Any] = {each.__name__.rpartition(".")[2]: each for each in families}
    table |= {row.name.upper(): row for row in rows.values()}
    table |= {"FAMILIES": families, "OPS": rows, "CALLABLE_OPS": callable_rows(rows)}
    globals().update(table)
    if name not in table and families is CORE_FAMILIES:
        raise AttributeError(
            f"op {name!r}, beyond elementary functions and reductions, {NEEDS_ENGINE}"
        )
    if name not in table:
        raise AttributeError(f"no op is called {name!r}{suggest(name, table)}")
    return table[name]
