"""Casts as a library has them: what lies outside of a dtype of few bits differs between them.

A float beyond int8, uint8 or int16 is the nearest of their numbers, and one beyond float8_e4m3fn is
NaN, unless the library wraps the former around, or limits the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...graph.ir.types import FLOAT8, INT32, SMALL, WHOLE, dtype_name, is_float
from ...trace import trace
from ...trace.trace import Value
from ...trace.xp import all as xp
from ..code.table import habits_of

LARGEST = 448.0  # of float8_e4m3fn, which has no infinity


def cast(x: Any, dtype: Any) -> Any:
    """x in another dtype, as the library has it that the code is written in."""
    name = dtype_name(dtype)
    if not isinstance(x, Value) or not is_float(x.node.type) or name not in (*SMALL, *FLOAT8):
        return trace.cast(x, dtype)
    habits = habits_of(x.trace)
    if name in SMALL and habits.small_integers_wrap:
        x = trace.cast(x, INT32)
    if name == FLOAT8[0] and habits.float8_is_limited and x.node.type.dtype not in FLOAT8:
        x = xp.clip(x, -LARGEST, LARGEST)
    return trace.cast(x, dtype)


def as_held(x: Value, value: Any) -> Any:
    """Return what is written into a tensor of integers as integers of its own."""
    held, given = x.node.type, value.node.type if isinstance(value, Value) else None
    if given is None or given.kind != "tensor" or held.dtype not in WHOLE:
        return value
    return value if given.dtype == held.dtype else cast(value, held.dtype)


def byte(x: Any) -> Any:
    return cast(x, "uint8")


def char(x: Any) -> Any:
    return cast(x, "int8")


def short(x: Any) -> Any:
    return cast(x, "int16")


METHODS: Mapping[str, Callable[[Any], Any]] = {"byte": byte, "char": char, "short": short}
