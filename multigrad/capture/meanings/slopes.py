"""Where a library's own derivative is another than that of an op: of equal operands, at zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...graph.ir.types import is_float
from ...trace.trace import Value
from ...trace.xp import all as xp

Operation = Callable[[Any, Any], Any]


def is_differentiated(*operands: Any) -> bool:
    """Return whether a derivative of what is captured may be taken by the meaning of its ops."""
    symbols = [each for each in operands if isinstance(each, Value)]
    floats = [each for each in symbols if is_float(each.node.type)]
    return bool(floats) and symbols[0].trace.kind == "function"


def first_of(op: Operation, loses: Operation, x: Any, y: Any, *, missing: Any) -> Any:
    """Return the extreme of two by its op; of equal ones x gets the whole gradient.

    Args:
        loses: whether x is not the one that is looked for: (x, y) -> bools.
        missing: the operand which, where it is NaN, makes it y.
    """
    if not is_differentiated(x, y):
        return op(x, y)
    is_nan = xp.not_equal(missing, missing)
    return xp.where(xp.logical_or(loses(x, y), is_nan), y, x)
