"""Elementwise functions of `xg.xp` that are more than one op; see `all.py`."""

from __future__ import annotations

import math
from typing import Any

from ...graph import ops
from ...graph.ir.types import BOOL, WHOLE, T
from ..coercion import is_exact
from ..trace import Value, apply, are_bools, cast, copy_of, dtype_name, native_dtype, pow
from .ops import digamma, equal, isnan, maximum, minimum, where

Tensor = Any

__all__ = [
    "astype", "bitwise_and", "bitwise_invert", "bitwise_or", "bitwise_xor", "cast", "cast_like",
    "clip", "full_like", "nan_to_num", "ones_like", "polygamma", "positive", "pow",
    "zeros_like",
]  # fmt: skip


def positive(x: Tensor) -> Tensor:
    """x as it is.

    Examples:
        >>> xp.positive(np.array([-1.0, 2.0]))
        array([-1.,  2.])
    """
    return copy_of(x)


def clip(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    """x limited to [min, max]; None leaves a side open; NaN propagates; max where min > max.

    Examples:
        >>> xp.clip(np.array([-1.0, 0.5, 3.0]), 0.0, 1.0)
        array([0. , 0.5, 1. ])
        >>> xp.clip(np.array([-1.0, 0.5, 3.0]), max=1.0)
        array([-1. ,  0.5,  1. ])
    """
    if min is None:
        return copy_of(x) if max is None else minimum(x, max)
    return maximum(x, min) if max is None else apply(ops.CLIP, x, min, max)


def astype(x: Tensor, dtype: Any) -> Tensor:
    """x in another dtype.

    Examples:
        >>> xp.astype(np.array([1.7, -1.7]), "int32")
        array([ 1, -1], dtype=int32)
    """
    return cast(x, dtype)


def cast_like(x: Tensor, like: Tensor) -> Tensor:
    """x in the dtype of `like`.

    Examples:
        >>> xp.cast_like(np.array([1.0]), np.zeros(2, np.float32)).dtype
        dtype('float32')
    """
    return cast(x, like.node.type.dtype if isinstance(like, Value) else like.dtype)


def full_like(x: Tensor, value: Tensor, dtype: Any = None) -> Tensor:
    """A tensor of x's shape filled with a number; bool where dtype says so.

    Examples:
        >>> xp.full_like(np.zeros(2), 7.0)
        array([7., 7.])
    """
    if not isinstance(x, Value):
        given = None if dtype is None else native_dtype(x, dtype)
        return apply(ops.FULL_LIKE, x, value, dtype=given)
    if dtype is None:
        name = x.node.type.dtype if x.node.type.kind == "tensor" else T
    elif is_exact(x.trace):
        name = x.trace.types.normal(dtype_name(dtype))
    # A rule has two dtypes, bool and its input's; only a capture with known types has others.
    else:
        name = BOOL if dtype is bool or "bool" in str(dtype) else T
    if name in (BOOL, *WHOLE) and not isinstance(value, Value):
        value = bool(value) if name == BOOL else int(value)
    return apply(ops.FULL_LIKE, x, value, dtype=name)


def zeros_like(x: Tensor, dtype: Any = None) -> Tensor:
    """A tensor of zeros, of the shape of x.

    Examples:
        >>> xp.zeros_like(np.ones(2))
        array([0., 0.])
    """
    return full_like(x, 0.0, dtype)


def ones_like(x: Tensor, dtype: Any = None) -> Tensor:
    """A tensor of ones, of the shape of x.

    Examples:
        >>> xp.ones_like(np.zeros(2))
        array([1., 1.])
    """
    return full_like(x, 1.0, dtype)


def polygamma(n: int, x: Tensor) -> Tensor:
    """The n-th derivative of digamma; for n above zero NaN where x is negative.

    Examples:
        >>> np.round(xp.polygamma(1, np.array([1.0, 2.0])), 4)
        array([1.6449, 0.6449])
    """
    return apply(ops.POLYGAMMA, x, n=int(n)) if n else digamma(x)


def nan_to_num(
    x: Tensor, nan: Tensor = 0.0, posinf: Tensor | None = None, neginf: Tensor | None = None
) -> Tensor:
    """x with NaN and infinities replaced; None: by the largest number of the dtype.

    Examples:
        >>> xp.nan_to_num(np.array([np.nan, np.inf, 1.0]), posinf=9.0)
        array([0., 9., 1.])
    """
    if not any(isinstance(value, Value) for value in (nan, posinf, neginf)):
        given = {"nan": nan, "posinf": posinf, "neginf": neginf}
        numbers = {name: None if v is None else float(v) for name, v in given.items()}
        return apply(ops.NAN_TO_NUM, x, **numbers)
    # A symbolic replacement cannot be an attribute of the op.
    finite = apply(ops.NAN_TO_NUM, x, nan=0.0, posinf=None, neginf=None)
    above = finite if posinf is None else where(equal(x, math.inf), posinf, finite)
    below = above if neginf is None else where(equal(x, -math.inf), neginf, above)
    return where(isnan(x), nan, below)


# --- integers ------------------------------------------------------------------------------------
def bitwise_and(a: Tensor, b: Tensor) -> Tensor:
    """The bits set in both; of bools, both.

    Examples:
        >>> xp.bitwise_and(np.array([6, 5]), np.array([3, 3]))
        array([2, 1])
    """
    return apply(ops.AND if are_bools(a, b) else ops.BITWISE_AND, a, b)


def bitwise_or(a: Tensor, b: Tensor) -> Tensor:
    """The bits set in at least one; of bools, at least one.

    Examples:
        >>> xp.bitwise_or(np.array([6, 5]), np.array([3, 3]))
        array([7, 7])
    """
    return apply(ops.OR if are_bools(a, b) else ops.BITWISE_OR, a, b)


def bitwise_xor(a: Tensor, b: Tensor) -> Tensor:
    """The bits set in exactly one; of bools, exactly one.

    Examples:
        >>> xp.bitwise_xor(np.array([6, 5]), np.array([3, 3]))
        array([5, 6])
    """
    return apply(ops.XOR if are_bools(a, b) else ops.BITWISE_XOR, a, b)


def bitwise_invert(x: Tensor) -> Tensor:
    """The bits not set; of a bool, its negation.

    Examples:
        >>> xp.bitwise_invert(np.array([0, 5]))
        array([-1, -6])
    """
    return apply(ops.NOT if are_bools(x) else ops.BITWISE_INVERT, x)
