"""Types of IR values: kind, dtype and shape, all symbolic.

A rule is captured once for every rank and float dtype, so a dtype is `T` ("that of the rule's
input") unless the author fixed one, and a shape is a relation to the input's shape. Scalars are
weak: a Python number or a run-time parameter that takes the dtype of the tensor it meets.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import numpy as np

Kind = Literal["tensor", "scalar", "key"]

T = "T"  # the symbolic dtype: that of tin, or of grad_out where there is no tin
BOOL = "bool"
INT32 = "int32"  # the integers of bit operations
INT64 = "int64"  # places, and integers that a Function is given
INTEGERS = (INT32, INT64)
SMALL = ("int8", "uint8", "int16")  # kept as such; ops compute on them in int32 and wrap around
WHOLE = (*SMALL, *INTEGERS)
FLOATS_OF_16_BITS = ("float16", "bfloat16")
FLOATS = (*FLOATS_OF_16_BITS, "float32", "float64")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")  # kept as such; no op computes on them
DTYPES = (BOOL, *WHOLE, *FLOAT8, *FLOATS)

# INPUT_SHAPE, UNKNOWN or SCALAR_SHAPE; ("reduced", axis, keepdims): that of the input's reduction;
# ("alike", i): that of carried value i, in a turn of a scan.
Shape = str | tuple[object, ...]
INPUT_SHAPE = "x"  # the shape of tin and grad_out
SCALAR_SHAPE = ()  # rank 0
UNKNOWN = "?"


class Type(NamedTuple):
    """The type of one IR value; `dtype` of a scalar is "float", "int" or "bool" (weak)."""

    kind: Kind
    dtype: str
    shape: Shape = SCALAR_SHAPE

    def __str__(self) -> str:
        if self.kind == "key":
            return "key"
        if self.kind == "scalar":
            return f"weak {self.dtype}"
        return f"{self.dtype}[{format_shape(self.shape)}]"


def format_shape(shape: Shape) -> str:
    if isinstance(shape, str):
        return "..." if shape == INPUT_SHAPE else "?"
    if shape and shape[0] == "reduced":
        return f"... without {shape[1]}" if not shape[2] else f"... with 1 at {shape[1]}"
    return ""


FLOAT_SCALAR = Type("scalar", "float")
INT_SCALAR = Type("scalar", "int")
BOOL_SCALAR = Type("scalar", "bool")
KEY = Type("key", "uint32")
INPUT = Type("tensor", T, INPUT_SHAPE)


def is_float(type_: Type) -> bool:
    """Return whether a value of this type carries gradients."""
    return type_.dtype in (T, *FLOATS, *FLOAT8, "float")


def promote(dtypes: Iterable[str]) -> str | None:
    """Return the integer dtype that holds all of these, or None if there are none."""
    names = set(dtypes)
    for dtype in (INT64, INT32):
        if dtype in names:
            return dtype
    # int8 and uint8 together need 16 bits.
    return "int16" if "int16" in names or len(names) > 1 else next(iter(names), None)


def reduce_shape(shape: Shape, axis: object, keepdims: bool) -> Shape:
    """Return the shape after a reduction over `axis` (None: all axes)."""
    if shape == SCALAR_SHAPE:
        return SCALAR_SHAPE
    if axis is None and not keepdims:
        return SCALAR_SHAPE
    if shape == INPUT_SHAPE:
        return ("reduced", axis, keepdims)
    return UNKNOWN


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape of an elementwise result, or UNKNOWN."""
    distinct = dict.fromkeys(shapes)
    distinct.pop(SCALAR_SHAPE, None)
    if len(distinct) < 2:
        return next(iter(distinct), SCALAR_SHAPE)
    if INPUT_SHAPE in distinct and all(s == INPUT_SHAPE or keeps_rank(s) for s in distinct):
        return INPUT_SHAPE
    return UNKNOWN


def keeps_rank(shape: Shape) -> bool:
    """Return whether a shape is the input's with ones in reduced places."""
    return isinstance(shape, tuple) and len(shape) == 3 and shape[0] == "reduced" and bool(shape[2])


def dtype_name(dtype: Any) -> str:
    """Return the IR's name of a dtype given as a string, a Python type or a framework's object."""
    if dtype is bool:
        return BOOL
    if dtype is float:
        return T
    if isinstance(dtype, np.dtype):
        return _numpy_name(dtype)
    name = getattr(dtype, "symbol", None) or getattr(dtype, "name", None)
    if not isinstance(name, str) or (name.isupper() and name != T):  # an enum member
        name = getattr(dtype, "__name__", None) or str(dtype)
    # torch.float32 is shown with its module, numpy.bool_ with an underscore.
    return name.rsplit(".", 1)[-1].rstrip("_")


@functools.lru_cache(maxsize=64)
def _numpy_name(dtype: np.dtype[Any]) -> str:
    # NumPy takes long to name a dtype.
    return dtype.name
