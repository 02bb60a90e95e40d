"""The nodes of a graph that compute nothing: inputs, constants, calls of functions with their own
gradients, and outputs as backward finds them.
"""

from __future__ import annotations

from typing import Any

from ..ir.op import ANYTHING, DTYPE, HALVES, NAME, Op, called, of_dtype, structural
from .numerics import Array
from .table import op, zero


def array(like: Array, *, dtype: Any, value: Any) -> Array:
    return value.as_numpy(dtype)


def output(value: Array, *, position: int) -> Array:
    return value


def uncomputed(name: str, args: str, doc: str, /, result: Any = structural, **fields: Any) -> Op:
    return op(name, args, numpy=structural, vjp=None, doc=doc, result=result, **fields)


INPUT = uncomputed("input", "", "An input.", name=NAME)
CONST = uncomputed("const", "", "A number.", value=ANYTHING)
CALL = uncomputed(
    "call",
    "value *inputs",
    "An output of a function that has a gradient of its own.",
    called,
    coerce="raw",
    function=ANYTHING,
    position=HALVES,
)
OUTPUT = op(
    "output",
    "value",
    numpy=output,
    vjp="ct",
    result=called,
    coerce="raw",
    position=HALVES,
    doc="An output as backward finds it, whose gradient is the Function's own.",
)
ARRAY = op(
    "array",
    "like",
    dtype=DTYPE,
    value=ANYTHING,
    coerce="raw",
    numpy=array,
    vjp=zero,
    result=of_dtype,
    doc="A constant array in the given dtype, on the device of `like`.",
    xp="asarray",
    composed=True,
    shape_only=(0,),
)
