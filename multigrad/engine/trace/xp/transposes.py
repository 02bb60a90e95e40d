"""The functions that only VJPs call, not part of `xg.xp`; see `core/trace/xp/all.py`.

They are made from the rows of the op table.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from ....core.trace.xp.ops import define

_get_name = define(globals(), attrgetter("in_vjps"))


def __getattr__(name: str) -> Any:
    return _get_name(name)
