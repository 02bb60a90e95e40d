"""The dialect `xg.xp`, elementwise: the functions that are more than one op; see `xp_all.py`."""

from __future__ import annotations

import math
from typing import Any

from .. import ops
from ..ir.types import BOOL, T
from .trace import Value, apply, are_bools, cast, copy_of, native_dtype, pow
from .xp_ops import digamma, equal, isnan, maximum, minimum, where

Tensor = Any

__all__ = [
    "astype", "bitwise_and", "bitwise_invert", "bitwise_or", "bitwise_xor", "cast", "cast_like",
    "clip", "full_like", "nan_to_num", "ones_like", "polygamma", "positive", "pow",
    "zeros_like",
]  # fmt: skip


def positive(x: Tensor) -> Tensor:
    return copy_of(x)


def clip(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    """x limited to [min, max]; None leaves a side open; NaN propagates; max where min > max."""
    if min is None:
        return copy_of(x) if max is None else minimum(x, max)
    return maximum(x, min) if max is None else apply(ops.CLIP, x, min, max)


def astype(x: Tensor, dtype: Any) -> Tensor:
    return cast(x, dtype)


def cast_like(x: Tensor, like: Tensor) -> Tensor:
    """x in the dtype of `like`."""
    return cast(x, like.node.type.dtype if isinstance(like, Value) else like.dtype)


def full_like(x: Tensor, value: Tensor, dtype: Any = None) -> Tensor:
    """A tensor of x's shape filled with a number; bool where dtype says so."""
    if not isinstance(x, Value):
        given = None if dtype is None else native_dtype(x, dtype)
        return apply(ops.FULL_LIKE, x, value, dtype=given)
    if dtype is None:
        name = x.node.type.dtype if x.node.type.kind == "tensor" else T
    else:
        name = BOOL if dtype is bool or "bool" in str(dtype) else T
    if name == BOOL and not isinstance(value, Value):
        value = bool(value)
    return apply(ops.FULL_LIKE, x, value, dtype=name)


def zeros_like(x: Tensor, dtype: Any = None) -> Tensor:
    return full_like(x, 0.0, dtype)


def ones_like(x: Tensor, dtype: Any = None) -> Tensor:
    return full_like(x, 1.0, dtype)


def polygamma(n: int, x: Tensor) -> Tensor:
    """The n-th derivative of digamma; for n above zero NaN where x is negative."""
    return apply(ops.POLYGAMMA, x, n=int(n)) if n else digamma(x)


def nan_to_num(
    x: Tensor, nan: Tensor = 0.0, posinf: Tensor | None = None, neginf: Tensor | None = None
) -> Tensor:
    """x with NaN and infinities replaced; None: by the largest number of the dtype."""
    if not any(isinstance(value, Value) for value in (nan, posinf, neginf)):
        given = {"nan": nan, "posinf": posinf, "neginf": neginf}
        numbers = {name: None if v is None else float(v) for name, v in given.items()}
        return apply(ops.NAN_TO_NUM, x, **numbers)
    finite = apply(ops.NAN_TO_NUM, x, nan=0.0, posinf=None, neginf=None)
    above = finite if posinf is None else where(equal(x, math.inf), posinf, finite)
    below = above if neginf is None else where(equal(x, -math.inf), neginf, above)
    return where(isnan(x), nan, below)


# --- integers ------------------------------------------------------------------------------------
def bitwise_and(a: Tensor, b: Tensor) -> Tensor:
    """The bits set in both; of bools, both."""
    return apply(ops.AND if are_bools(a, b) else ops.BITWISE_AND, a, b)


def bitwise_or(a: Tensor, b: Tensor) -> Tensor:
    """The bits set in at least one; of bools, at least one."""
    return apply(ops.OR if are_bools(a, b) else ops.BITWISE_OR, a, b)


def bitwise_xor(a: Tensor, b: Tensor) -> Tensor:
    """The bits set in exactly one; of bools, exactly one."""
    return apply(ops.XOR if are_bools(a, b) else ops.BITWISE_XOR, a, b)


def bitwise_invert(x: Tensor) -> Tensor:
    """The bits not set; of a bool, the contrary."""
    return apply(ops.NOT if are_bools(x) else ops.BITWISE_INVERT, x)
