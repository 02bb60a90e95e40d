"""Numbers, dtypes and arrays as Python writes them, to the bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...graph.ir.graph import ArrayValue

LISTED = 64  # elements up to which an array is written as a list
LINE = 40  # bytes in a line of hexadecimal digits


def literal(value: Any) -> str:
    """Return a number, a string or None; Python has no literal for infinity and NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        name = "math.nan" if math.isnan(value) else "math.inf"
        return f"-{name}" if value < 0 else name
    if isinstance(value, str):
        quoted = repr(value)
        plain = quoted.startswith("'") and '"' not in quoted and "\\" not in quoted
        return f'"{quoted[1:-1]}"' if plain else quoted
    return repr(value)


def dtype(value: np.dtype[Any]) -> str:
    """Return the expression of a NumPy dtype, which ml_dtypes may define."""
    package = value.type.__module__.partition(".")[0]
    return (
        f"np.dtype(ml_dtypes.{value.name})"
        if package == "ml_dtypes"
        else f'np.dtype("{value.name}")'
    )


def array(value: ArrayValue) -> str:
    """Return the expression of a NumPy array: a list of its numbers, or its bytes."""
    stored = np.frombuffer(value.data, np.dtype(value.dtype))
    few = stored.size <= LISTED
    if few and stored.size and np.all(np.isfinite(stored.astype(np.float64))):
        return f'np.array({stored.reshape(value.shape).tolist()!r}, "{value.dtype}")'
    digits = value.data.hex()
    lines = [f'"{digits[i : i + 2 * LINE]}"' for i in range(0, len(digits), 2 * LINE)]
    text = "\n    ".join(lines) or '""'
    return (
        f'np.frombuffer(\n    bytes.fromhex(\n    {text}\n    ),\n    "{value.dtype}",\n'
        f").reshape({value.shape!r})"
    )
