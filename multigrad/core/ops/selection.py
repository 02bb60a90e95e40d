"""Ops that select, limit, convert or fill: clip, where, cast, full_like; and nodes that compute
nothing: inputs, constants, calls of functions with gradients of their own, and outputs as backward
finds them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir.op import (
    ANYTHING,
    DTYPE,
    FLOAT8,
    HALVES,
    LAYOUT,
    NAME,
    Op,
    called,
    cast_to,
    chosen,
    elementwise,
    filled,
    of_dtype,
    same,
    structural,
)
from .arithmetic import maximum, minimum
from .numerics import Array, as_numpy_dtype
from .properties import ABOVE_ONE, BELOW_MINUS_ONE, REALS, choice, linear
from .table import Cotangents, Number, op, zero


def clip(x: Array, min: Array, max: Array) -> Array:
    # In this order NaN propagates, and max wins where min > max.
    return np.minimum(np.maximum(x, min), max)


def clip_vjp(xp: Any, ct: Any, y: Any, x: Any, low: Any, high: Any) -> Cotangents:
    # The bounds count as inside; where they cross, the upper one gets all, as in torch.
    is_inside = xp.greater_equal(x, low) & xp.less_equal(x, high)
    is_below = xp.less(x, low) & xp.less(low, high)
    is_above = xp.greater(x, high) | xp.less(high, low)
    return tuple(xp.where(each, ct, 0.0) for each in (is_inside, is_below, is_above))


def clip_number(x: Number, low: Number, high: Number) -> Number:
    return minimum(maximum(x, low), high)


def where(condition: Number, a: Number, b: Number) -> Number:
    return a if condition else b


def memory(x: Array, *, how: str) -> Array:
    word = how.partition(" ")[0]
    if word == "copy":
        return np.array(x)
    return np.asarray(x, order="C") if how == "contiguous C" else x


CLIP = op(
    "clip",
    "x min max",
    numpy=clip,
    vjp=clip_vjp,
    result=elementwise,
    doc="x limited to [min, max]; NaN propagates; max where min > max.",
    composed=True,
    integer=True,
    on_numbers=clip_number,
    domain=(REALS, BELOW_MINUS_ONE, ABOVE_ONE),
)
WHERE = op(
    "where",
    "condition a b",
    coerce="where",
    numpy=np.where,
    vjp="None, xp.where(condition, ct, 0.0), xp.where(condition, 0.0, ct)",
    result=chosen,
    doc="a where the condition holds, else b.",
    degree=choice,
    integer=True,
    on_numbers=where,
)


def cast(x: Array, *, dtype: Any) -> Array:
    x, target = np.asarray(x), as_numpy_dtype(dtype)
    if target.kind in "iu" and x.dtype.kind in "fV":
        return to_integers(x, target)
    if x.dtype == np.float64 and target.name in FLOAT8:  # rounded twice, as everywhere
        x = x.astype(np.float32)
    return x.astype(target)


# The largest number below 2**63 in all float dtypes that have one so large.
LARGEST = 255 * 2.0**55
MOST_IN_FLOAT8 = 464.0  # rounds to 448, the largest number of float8_e4m3fn


def to_integers(x: Array, dtype: Any) -> Array:
    """Return integers, truncated and saturated, 0 for NaN: NumPy leaves these to the processor."""
    truncated, limits = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0), np.iinfo(dtype)
    low, high = (-LARGEST, LARGEST) if dtype == np.int64 else (limits.min, limits.max)
    return np.clip(truncated, low, high).astype(dtype)


def full_like(x: Array, value: Array, *, dtype: Any = None) -> Array:
    return np.full_like(x, value, dtype=x.dtype if dtype is None else as_numpy_dtype(dtype))


def stop_gradient(x: Array) -> Array:
    return x


CAST = op(
    "cast",
    "x",
    dtype=DTYPE,
    coerce="raw",
    numpy=cast,
    vjp="xp.cast_like(ct, x)",
    result=cast_to,
    doc="x in another dtype; T is the input's. To integers: truncated, saturated, NaN gives 0; "
    "integers wrap around. To float8: by float32, and NaN beyond float8_e4m3fn.",
    xp="astype",
    composed=True,
    degree=linear,
)
FULL_LIKE = op(
    "full_like",
    "x value",
    dtype=DTYPE,
    coerce="raw",
    numpy=full_like,
    vjp="None, ct",
    result=filled,
    doc="A tensor of x's shape filled with a number.",
    composed=True,
    degree=linear,
    shape_only=(0,),
    shaped_like=0,
)
STOP_GRADIENT = op(
    "stop_gradient",
    "x",
    coerce="raw",
    numpy=stop_gradient,
    vjp=zero,
    result=same,
    doc="x, with derivative zero.",
    view="always",
    on_numbers=stop_gradient,
)
# What code says of memory, where tensors are written to; elsewhere it is x itself.
MEMORY = op(
    "memory",
    "x",
    how=LAYOUT,
    coerce="raw",
    numpy=memory,
    vjp="ct",
    result=same,
    doc="x copied (`copy`), copied if it is not in this order (`contiguous`), as a view "
    "(`alias`), or as one that counts as none (`own`).",
    degree=linear,
)

# --- nodes that compute nothing -------------------------------------------------------------------


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
