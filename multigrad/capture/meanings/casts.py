"""Casts as a library has them: what lies outside of a dtype of few bits differs between them.

A float beyond int8, uint8 or int16 is the nearest of their numbers, and one beyond float8_e4m3fn is
NaN, unless the library wraps the former around, or limits the latter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...graph.ir.types import BOOL, FLOAT8, INT32, INT64, SMALL, WHOLE, dtype_name, is_float
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


def to_dtype(dtype: str) -> Callable[[Any], Any]:
    """Return the method that casts to a dtype."""

    def to(x: Any) -> Any:
        return cast(x, dtype)

    return to


DTYPES = {
    "bfloat16": "bfloat16",
    "bool": BOOL,
    "byte": "uint8",
    "char": "int8",
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "int": INT32,
    "long": INT64,
    "short": "int16",
}
METHODS = {name: to_dtype(dtype) for name, dtype in DTYPES.items()}
