"""The functions that only VJPs call, not part of `xg.xp`; see `all.py`.

They are made from the rows of the op table. `python tools/write_sources.py` writes `transposes.pyi`
for type checkers.
"""

from __future__ import annotations

from ...graph.ops import CALLABLE_OPS
from .ops import define

define(globals(), (row for row in CALLABLE_OPS if row.in_vjps))
