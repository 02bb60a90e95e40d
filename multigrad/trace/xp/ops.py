"""The functions of `xg.xp` that record one op each; see `all.py`.

They are made from the rows of the op table. `python tools/write_sources.py` writes `ops.pyi` for
type checkers.
"""

from __future__ import annotations

from ...graph.ops import CALLABLE_OPS
from .op_functions import define

define(globals(), (row for row in CALLABLE_OPS if not row.composed and not row.in_vjps))
