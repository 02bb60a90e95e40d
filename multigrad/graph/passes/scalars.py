"""Ops on Python numbers: a parameter with another parameter or with a constant.

Division by zero and overflow give inf and NaN as everywhere in the IR, never an exception.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import ops
from ..ir.graph import Node, make_node
from ..ir.op import Op
from ..ir.types import BOOL_SCALAR, FLOAT_SCALAR, INT_SCALAR
from ..ops.table import Number


def constant(number: Any) -> Node:
    if isinstance(number, bool):
        return make_node(ops.CONST, (), {"value": number}, BOOL_SCALAR)
    # A subclass (np.float64) would appear in emitted code under its own name.
    if isinstance(number, float):
        return make_node(ops.CONST, (), {"value": float(number)}, FLOAT_SCALAR)
    return make_node(ops.CONST, (), {"value": int(number)}, INT_SCALAR)


def on_numbers(op: Op, args: tuple[Number, ...], attrs: dict[str, Any]) -> Number:
    """Return an op's result on Python numbers, by its `on_numbers` or by NumPy in float64."""
    exact = op.on_numbers
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
REAL = (float, int)


def symbol_function(op: Op) -> Callable[..., Any] | None:
    return (UNARY if len(op.operands) == 1 else BINARY).get(op.symbol or "")


@functools.lru_cache(maxsize=1024)
def scalar_function(
    op: Op, native: Callable[..., Any], opened: Callable[[Any], Any] | None = None
) -> Callable[..., Any]:
    """Return a function that computes an op on Python numbers here, and on others by `native`.

    `native` gets its arguments as `opened` returns them.
    """
    exact = op.on_numbers

    def call(*args: Any, **attrs: Any) -> Any:
        for a in args:
            if not isinstance(a, float | int):
                given = args if opened is None else map(opened, args)
                return native(*given, **attrs)
        return exact(*args) if exact is not None and not attrs else on_numbers(op, args, attrs)

    def call_two(a: Any, b: Any) -> Any:
        # Two Python floats are the common case on the hot path.
        if type(a) is float and type(b) is float:
            return exact(a, b)  # type: ignore[misc]
        return call(a, b)

    # Without a further call, because limits and quotients of numbers are in every backward.
    def call_maximum(a: Any, b: Any) -> Any:
        if type(a) is float and type(b) is float:
            return b if b > a or b != b else a  # noqa: PLR0124 (NaN)
        return call(a, b)

    def call_minimum(a: Any, b: Any) -> Any:
        if type(a) is float and type(b) is float:
            return b if b < a or b != b else a  # noqa: PLR0124 (NaN)
        return call(a, b)

    def call_divide(a: Any, b: Any) -> Any:
        return a / b if type(a) in REAL and type(b) in REAL and b else call(a, b)

    def call_root(a: Any) -> Any:
        return math.sqrt(a) if type(a) is float and a >= 0 else call(a)

    direct = {
        ops.MAXIMUM: call_maximum,
        ops.MINIMUM: call_minimum,
        ops.DIV: call_divide,
        ops.SQRT: call_root,
    }.get(op)
    two = call_two if exact is not None and len(op.operands) == 2 else call
    chosen = two if direct is None else direct
    chosen.__name__ = f"scalar_{op.name}"
    chosen.scalar_of = op, native  # type: ignore[attr-defined]  (by which a file has its own form)
    return chosen
