"""Comparisons, logic, tests of numbers, bits of integers: ops without a derivative."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from ..ir.op import Op, compared
from .table import Number, op, zero


def comparison(name: str, symbol: str, numpy: Any, on_numbers: Any, doc: str) -> Op:
    """Declare an elementwise comparison; with NaN it is False, except for `ne`."""
    fields = {"symbol": symbol, "xp": numpy.__name__, "on_numbers": on_numbers}
    return op(name, "a b", numpy=numpy, vjp=zero, doc=doc, result=compared, integer=True, **fields)


LT = comparison("lt", "<", np.less, operator.lt, "a < b.")
LE = comparison("le", "<=", np.less_equal, operator.le, "a <= b.")
GT = comparison("gt", ">", np.greater, operator.gt, "a > b.")
GE = comparison("ge", ">=", np.greater_equal, operator.ge, "a >= b.")
EQ = comparison("eq", "==", np.equal, operator.eq, "a equals b; 0 equals -0.")
NE = comparison("ne", "!=", np.not_equal, operator.ne, "a differs from b; NaN always differs.")


def logical(name: str, symbol: str, numpy: Any, on_numbers: Any, doc: str) -> Op:
    args = "x" if numpy.nin == 1 else "a b"
    fields = {"symbol": symbol, "xp": numpy.__name__, "on_numbers": on_numbers}
    return op(name, args, coerce="bool", numpy=numpy, vjp=zero, doc=doc, result=compared, **fields)


def logical_and(a: Number, b: Number) -> Number:
    return bool(a) and bool(b)


def logical_or(a: Number, b: Number) -> Number:
    return bool(a) or bool(b)


AND = logical("and", "&", np.logical_and, logical_and, "Both.")
OR = logical("or", "|", np.logical_or, logical_or, "At least one.")
XOR = logical("xor", "^", np.logical_xor, operator.ne, "Exactly one.")
NOT = logical("not", "~", np.logical_not, operator.not_, "Negation.")


def question(name: str, numpy: Any, doc: str, on_numbers: Any = None) -> Op:
    return op(name, "x", numpy=numpy, vjp=zero, doc=doc, result=compared, on_numbers=on_numbers)


ISNAN = question("isnan", np.isnan, "x is NaN.", math.isnan)
ISINF = question("isinf", np.isinf, "x is infinite.", math.isinf)
ISFINITE = question("isfinite", np.isfinite, "Not NaN, not inf.", math.isfinite)
