"""Ops on Python numbers: what happens where a parameter meets a parameter or a constant.

Division by zero and overflow give inf and NaN as everywhere else in the IR, never a Python exception.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from . import ops
from .ops import Op

Number = bool | int | float


def divide(a: Number, b: Number) -> Number:
    if b != 0:
        return a / b
    if a == 0 or math.isnan(a):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def maximum(a: Number, b: Number) -> Number:
    return a if math.isnan(a) or a >= b else b


def minimum(a: Number, b: Number) -> Number:
    return a if math.isnan(a) or a <= b else b


def floor_divide(a: Number, b: Number) -> Number:
    """In integers where both are: a length halved stays a length."""
    return a // b if b != 0 else divide(a, b)


def remainder(a: Number, b: Number) -> Number:
    return a % b if b != 0 and not math.isinf(a) else math.nan


def left_shift(a: int, b: int) -> int:
    return a << b if 0 <= b < 32 else 0


def right_shift(a: int, b: int) -> int:
    return a >> (b if 0 <= b < 32 else 31)


def where(condition: Number, a: Number, b: Number) -> Number:
    return a if condition else b


def clip(x: Number, low: Number, high: Number) -> Number:
    return minimum(maximum(x, low), high)


def square(x: Number) -> Number:
    return x * x


def logical_and(a: Number, b: Number) -> Number:
    return bool(a) and bool(b)


def logical_or(a: Number, b: Number) -> Number:
    return bool(a) or bool(b)


def stop_gradient(x: Number) -> Number:
    return x


SCALARS: dict[Op, Callable[..., Any]] = {
    ops.ADD: operator.add,
    ops.SUB: operator.sub,
    ops.MUL: operator.mul,
    ops.DIV: divide,
    ops.FLOOR_DIVIDE: floor_divide,
    ops.REMAINDER: remainder,
    ops.NEG: operator.neg,
    ops.ABS: abs,
    ops.MAXIMUM: maximum,
    ops.MINIMUM: minimum,
    ops.CLIP: clip,
    ops.SQUARE: square,
    ops.WHERE: where,
    ops.LT: operator.lt,
    ops.LE: operator.le,
    ops.GT: operator.gt,
    ops.GE: operator.ge,
    ops.EQ: operator.eq,
    ops.NE: operator.ne,
    ops.AND: logical_and,
    ops.OR: logical_or,
    ops.XOR: operator.ne,
    ops.NOT: operator.not_,
    ops.ISNAN: math.isnan,
    ops.ISINF: math.isinf,
    ops.ISFINITE: math.isfinite,
    ops.STOP_GRADIENT: stop_gradient,
    ops.BITWISE_AND: operator.and_,
    ops.BITWISE_OR: operator.or_,
    ops.BITWISE_XOR: operator.xor,
    ops.BITWISE_INVERT: operator.invert,
    ops.BITWISE_LEFT_SHIFT: left_shift,
    ops.BITWISE_RIGHT_SHIFT: right_shift,
}


def on_numbers(op: Op, args: tuple[Number, ...], attrs: dict[str, Any]) -> Number:
    """Compute `op` on Python numbers in float64, by its own row here or by the NumPy meaning."""
    exact = SCALARS.get(op)
    if exact is not None and not attrs:
        return exact(*args)
    with np.errstate(all="ignore"):
        result = op.numpy(*(np.float64(a) for a in args), **attrs)
    return result.item() if hasattr(result, "item") else result


BINARY = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq,
    "!=": operator.ne, "&": operator.and_, "|": operator.or_, "^": operator.xor,
}  # fmt: skip
UNARY = {"-": operator.neg, "~": operator.invert}


def symbol_function(op: Op) -> Callable[..., Any] | None:
    """Return Python's operator for an infix op."""
    return (UNARY if len(op.operands) == 1 else BINARY).get(op.symbol or "")


@functools.lru_cache(maxsize=1024)
def scalar_function(op: Op, native: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes `op` on Python numbers here and on anything else by `native`."""
    exact = SCALARS.get(op)

    def call(*args: Any, **attrs: Any) -> Any:
        for a in args:
            if not isinstance(a, float | int):
                return native(*args, **attrs)
        return exact(*args) if exact is not None and not attrs else on_numbers(op, args, attrs)

    def call_two(a: Any, b: Any) -> Any:
        # Two Python floats are the common case on the hot path.
        return exact(a, b) if type(a) is float and type(b) is float else call(a, b)  # type: ignore[misc]

    # The same without a further call, as limits and quotients of numbers stand in every backward.
    def call_maximum(a: Any, b: Any) -> Any:
        if type(a) is float and type(b) is float:
            return b if b > a or b != b else a  # noqa: PLR0124 (NaN)
        return call(a, b)

    def call_minimum(a: Any, b: Any) -> Any:
        if type(a) is float and type(b) is float:
            return b if b < a or b != b else a  # noqa: PLR0124 (NaN)
        return call(a, b)

    def call_divide(a: Any, b: Any) -> Any:
        return a / b if type(a) is float and type(b) is float and b else call(a, b)

    direct = {ops.MAXIMUM: call_maximum, ops.MINIMUM: call_minimum, ops.DIV: call_divide}.get(op)
    two = call_two if exact is not None and len(op.operands) == 2 else call
    chosen = two if direct is None else direct
    chosen.__name__ = f"scalar_{op.name}"
    return chosen
