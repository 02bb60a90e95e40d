"""The functions that only VJPs call, not part of `xg.xp`; see `core/trace/xp/all.py`.

They are made from the rows of the op table. `python tools/write_sources.py` writes `transposes.pyi`
for type checkers.
"""

from __future__ import annotations

from operator import attrgetter

from ....core.trace.xp.ops import define

__getattr__ = define(globals(), attrgetter("in_vjps"))
