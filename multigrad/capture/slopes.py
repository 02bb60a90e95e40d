"""Where a library's own derivative is another than that of an op: of equal operands, at zero."""

from __future__ import annotations

from typing import Any

from ..ir.types import is_float
from ..tracing import xp_all as xp
from ..tracing.trace import Value


def is_differentiated(*operands: Any) -> bool:
    """Return whether a derivative of what is captured may be taken by the meaning of its ops."""
    symbols = [each for each in operands if isinstance(each, Value)]
    floats = [each for each in symbols if is_float(each.node.type)]
    return bool(floats) and symbols[0].trace.kind == "function"


def first_of(is_other: Any, x: Any, y: Any) -> Any:
    """Return y where it is the other one, else x, which of equal ones gets the whole gradient."""
    return xp.where(is_other, y, x)
