"""What differs between releases of Python, NumPy and SciPy: each name in one form, for all releases
that are supported.
"""

from __future__ import annotations

from typing import Any

import numpy as np

RELEASE = tuple(map(int, np.__version__.split(".")[:2]))


def _reshape(x: Any, shape: Any) -> Any:
    """As `np.reshape`, whose `shape` has another name before NumPy 2.1."""
    return np.reshape(x, shape)


def _vecdot(a: Any, b: Any) -> Any:
    """As `np.vecdot` of rows, which there is from NumPy 2.0 on: one row at a time."""
    return np.stack([x.dot(y) for x, y in zip(a, b, strict=True)])


reshape: Any = np.reshape if RELEASE >= (2, 1) else _reshape
vecdot: Any = getattr(np, "vecdot", _vecdot)


class HeldWeakly:
    """The base of a dataclass with slots whose objects weak references may point to: from Python
    3.11 on `weakref_slot=True`.
    """

    __slots__ = ("__weakref__",)
