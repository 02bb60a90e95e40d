"""Ops whose results are masks or integers, exact and without a gradient, by Python's operators."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from . import points
from .rounding import FORMATS, Columns, Format, Rounded

Data = dict[str, Any]
Number = Any
INTEGERS = (0, 1, -1, 2, 5, -6, 12, 1000, -12345, 2**30, 2**31 - 1, -(2**31))
SHIFTS = (0, 1, 7, 31)


def _in_32_bits(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


# By the kind of their operands: what they are in Python's notation, and who computes it.
OF_FLOATS: dict[str, tuple[str, Callable[..., Number]]] = {
    "less": ("a < b", operator.lt),
    "less_equal": ("a <= b", operator.le),
    "greater": ("a > b", operator.gt),
    "greater_equal": ("a >= b", operator.ge),
    "equal": ("a == b", operator.eq),
    "not_equal": ("a != b", operator.ne),
    "isnan": ("isnan(x)", math.isnan),
    "isinf": ("isinf(x)", math.isinf),
    "isfinite": ("isfinite(x)", math.isfinite),
    "signbit": ("copysign(1, x) < 0", lambda x: math.copysign(1.0, x) < 0),
}
OF_BOOLS: dict[str, tuple[str, Callable[..., Number]]] = {
    "logical_and": ("a & b", operator.and_),
    "logical_or": ("a | b", operator.or_),
    "logical_xor": ("a ^ b", operator.xor),
    "logical_not": ("not x", operator.not_),
}
OF_INTEGERS: dict[str, tuple[str, Callable[..., Number]]] = {
    "bitwise_and": ("a & b", operator.and_),
    "bitwise_or": ("a | b", operator.or_),
    "bitwise_xor": ("a ^ b", operator.xor),
    "bitwise_invert": ("~x", operator.invert),
    "bitwise_left_shift": ("a << b", lambda a, b: _in_32_bits(a << b)),
    "bitwise_right_shift": ("a >> b", operator.rshift),
}
ALL = {**OF_FLOATS, **OF_BOOLS, **OF_INTEGERS}


def operands_of(name: str) -> tuple[str, ...]:
    return ("x",) if "x" in ALL[name][0].replace("isfinite", "") else ("a", "b")


def sets(name: str, formats: Sequence[Format]) -> list[Data]:
    """Return a set for each dtype of floats, or the one of bools or integers."""
    count = len(operands_of(name))
    if name in OF_BOOLS:
        rows = list(itertools.product((0, 1), repeat=count))
        return [_set(name, "bool", rows)]
    if name in OF_INTEGERS:
        second = SHIFTS if "shift" in name else INTEGERS
        rows = list(itertools.product(INTEGERS, second) if count == 2 else zip(INTEGERS))
        return [_set(name, "int32", rows)]
    return [_set(name, format.name, _floats(count, format)) for format in formats]


def _floats(count: int, format: Format) -> list[tuple[float, ...]]:
    if count == 1:
        return [(x,) for x in points.of_one_operand(format)]
    ends = (math.inf, -math.inf, 1.0)
    return [*points.of_two_operands(format), *itertools.product(ends, ends)]


def _set(name: str, dtype: str, rows: Sequence[tuple[Number, ...]]) -> Data:
    _, compute = ALL[name]
    format = FORMATS.get(dtype) or replace(FORMATS["float64"], name=dtype)
    columns = Columns(format, [list(column) for column in zip(*rows, strict=True)], [])
    columns.results = [Rounded(float(compute(*row))) for row in rows]
    return columns.to_dict()
