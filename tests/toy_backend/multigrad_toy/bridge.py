"""Toy's arrays, dtypes and numbers, to and from NumPy."""

from __future__ import annotations

from typing import Any

import toy

from multigrad import random
from multigrad.ir.meaning import as_numpy_dtype


def dtype(name: str) -> Any:
    return as_numpy_dtype(name)


def weak(value: Any, dtype: Any) -> Any:
    """Return a number as a scalar of the array's dtype."""
    return value if isinstance(value, toy.Array) else dtype.type(value)


def key_pair(key: Any) -> Any:
    return random.key_pair(key.numpy() if isinstance(key, toy.Array) else key)


def is_traced(value: Any) -> bool:
    return False
