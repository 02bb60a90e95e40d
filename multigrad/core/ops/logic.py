"""Comparisons, logic, tests of numbers, bits of integers: ops without a derivative."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from ..ir.op import Op, compared, elementwise
from .properties import shifted
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
SIGNBIT = question("signbit", np.signbit, "The sign bit is set: x is below zero, or -0.")


def bitwise(name: str, numpy: Any, on_numbers: Any, doc: str, **fields: Any) -> Op:
    """Declare an elementwise op on int32; a Python symbol among them has another op for bools."""
    fields = {"coerce": "int", "on_numbers": on_numbers, "composed": "symbol" in fields, **fields}
    args = "x" if numpy.nin == 1 else "a b"
    return op(name, args, numpy=numpy, vjp=zero, doc=doc, result=elementwise, **fields)


def left_shift(a: int, b: int) -> int:
    # Python's integers shift by any amount; C leaves 32 and more undefined.
    return a << b if 0 <= b < 32 else 0


def right_shift(a: int, b: int) -> int:
    # A shift by 31 already leaves only the sign.
    return a >> (b if 0 <= b < 32 else 31)


BITWISE_AND = bitwise(
    "bitwise_and", np.bitwise_and, operator.and_, "The bits set in both.", symbol="&"
)
BITWISE_OR = bitwise(
    "bitwise_or", np.bitwise_or, operator.or_, "The bits set in at least one.", symbol="|"
)
BITWISE_XOR = bitwise(
    "bitwise_xor", np.bitwise_xor, operator.xor, "The bits set in exactly one.", symbol="^"
)
BITWISE_INVERT = bitwise(
    "bitwise_invert", np.bitwise_not, operator.invert, "The bits not set.", symbol="~"
)
BITWISE_LEFT_SHIFT = bitwise(
    "bitwise_left_shift",
    np.left_shift,
    left_shift,
    "a times 2 to the b, without what overflows.",
    bits=shifted,
)
BITWISE_RIGHT_SHIFT = bitwise(
    "bitwise_right_shift", np.right_shift, right_shift, "a over 2 to the b, rounded down."
)
