"""Functions of `xg.xp` that are more than one op; see `all.py`."""

from __future__ import annotations

import math
from operator import index
from typing import Any

import numpy as np

from ... import ops
from ...ir.op import BOOL, WHOLE, T
from ...passes.simplify import constant
from ..coercion import is_exact
from ..trace import (
    Axis,
    Value,
    apply,
    axes_of,
    cast,
    copy_of,
    dtype_name,
    known_shape,
    lift,
    native_dtype,
    pow,
)
from .ops import maximum, minimum

Tensor = Any

__all__ = [
    "astype", "broadcast_to", "cast", "cast_like", "clip", "dim", "full_like", "norm", "ones_like",
    "pow", "size", "zeros_like",
]  # fmt: skip


def broadcast_to(x: Tensor, like: Any) -> Tensor:
    """x repeated to the shape of `like`: a tensor, or a tuple of ints.

    Examples:
        >>> xp.broadcast_to(np.array([1.0, 2.0]), (2, 2))
        array([[1., 2.],
               [1., 2.]])
    """
    # A symbolic number is no tensor that an op could repeat: it fills one of that shape.
    if isinstance(x, Value) and x.node.type.kind == "scalar":
        if isinstance(like, tuple | list):
            if not like:
                return x
            like = broadcast_to(x.trace.value(lift(x.trace, np.zeros(1))), like)
        return apply(ops.FULL_LIKE, like, x, dtype=T)
    if isinstance(like, tuple | list):
        return apply(ops.BROADCAST_TO_SHAPE, x, shape=tuple(map(index, like)))
    return apply(ops.BROADCAST_TO, x, like)


def dim(x: Tensor, axis: int) -> Any:
    """The length of one axis, known at run time.

    Examples:
        >>> int(xp.dim(np.zeros((2, 3)), 1))
        3
    """
    shape = known_shape(x)
    return apply(ops.DIM, x, axis=axis) if shape is None else x.trace.value(constant(shape[axis]))


def size(x: Tensor) -> Any:
    """The number of elements, known at run time.

    Examples:
        >>> int(xp.size(np.zeros((2, 3))))
        6
    """
    shape = known_shape(x)
    return apply(ops.SIZE, x) if shape is None else x.trace.value(constant(math.prod(shape)))


def norm(x: Tensor, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """The norm of order `ord`: 1, 2, inf or any above 0, by default over all axes; of vectors.

    Examples:
        >>> float(xp.norm(np.array([3.0, 4.0])))
        5.0
        >>> xp.norm(np.array([[3.0, -4.0], [1.0, 0.0]]), axis=1, ord=1)
        array([7., 1.])
    """
    if not (isinstance(ord, int | float) and ord > 0):
        raise TypeError(f"norm has an order above 0, as 1, 2 or inf, not {ord!r}")
    order = int(ord) if ord in (1, 2) else float(ord)
    return apply(ops.NORM, x, axis=axes_of(x, axis), keepdims=bool(keepdims), ord=order)


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
    """A tensor of x's shape filled with a number.

    dtype may be bool; others count only for tensors, and in captures whose types are known.

    Examples:
        >>> xp.full_like(np.zeros(2), 7.0)
        array([7., 7.])
    """
    if not isinstance(x, Value):
        native = None if dtype is None else native_dtype(x, dtype)
        return apply(ops.FULL_LIKE, x, value, dtype=native)
    if dtype is None:
        name = x.node.type.dtype if x.node.type.kind == "tensor" else T
    elif is_exact(x.trace):
        name = x.trace.types.normal(dtype_name(dtype))
    else:
        # A rule has two dtypes, bool and its input's; only a capture with known types has others.
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
