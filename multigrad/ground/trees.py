"""Nested values by optree, as everything here uses it: its annotations know one type of leaf in a
tree, ours hold any.
"""

from __future__ import annotations

from typing import Any

import optree as _optree

optree: Any = _optree
