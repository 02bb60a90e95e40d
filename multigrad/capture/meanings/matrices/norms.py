"""Norms of vectors and matrices under the names that libraries give them."""

from __future__ import annotations

import math
from typing import Any

from ....trace.xp import all as xp
from ..parts import rank
from .factors import svdvals

Tensor = Any
BY_SUMS = {1: -2, math.inf: -1}  # the axis along which a matrix norm of that order sums
BY_VALUES = {2: xp.max, -2: xp.min, "nuc": xp.sum}  # what of the singular values is one


def norm(
    x: Tensor, ord: Any = None, axis: Any = None, keepdims: bool = False, dtype: Any = None
) -> Tensor:
    """NumPy's: without an order of all elements as a vector, along two axes of matrices."""
    if axis is not None and not isinstance(axis, int):
        axis = tuple(axis)
    if ord is None:
        return xp.norm(converted(x, dtype), axis, keepdims)
    if axis is None:
        axis = tuple(range(rank(x)))
    if isinstance(axis, int) or len(axis) == 1:
        return vector_norm(x, ord, axis, keepdims, dtype)
    if len(axis) != 2:
        raise TypeError(f"a norm of order {ord!r} over {len(axis)} axes; it takes one or two")
    return matrix_norm(x, ord, axis, keepdims, dtype)


def vector_norm(
    x: Tensor, ord: Any = 2, axis: Any = None, keepdims: bool = False, dtype: Any = None
) -> Tensor:
    """A norm of any order over axes, all of them where none is named."""
    axis = tuple(axis) if isinstance(axis, list) else axis
    if not isinstance(ord, int | float):
        raise TypeError(f"a norm of order {ord!r} of vectors; a number is known")
    x = converted(x, dtype)
    if ord > 0:
        return xp.norm(x, axis, keepdims, ord)
    sizes = xp.abs(x)
    if ord == 0:
        return xp.sum(xp.where(xp.equal(sizes, 0), 0.0, 1.0), axis, keepdims)
    if ord == -math.inf:
        return xp.min(sizes, axis, keepdims)
    return xp.pow(xp.sum(xp.pow(sizes, ord), axis, keepdims), 1.0 / ord)


def matrix_norm(
    x: Tensor, ord: Any, axes: Any = (-2, -1), keepdims: bool = False, dtype: Any = None
) -> Tensor:
    """Frobenius's; by singular values; the largest, of a negative order the smallest, sum along
    an axis.
    """
    x, axes = converted(x, dtype), tuple(axes)
    if ord == "fro":
        return xp.norm(x, axes, keepdims)
    if ord in BY_VALUES:
        axes = tuple(axis % rank(x) for axis in axes)
        result = BY_VALUES[ord](svdvals(xp.moveaxis(x, axes, (-2, -1))), -1)
        for axis in sorted(axes) if keepdims else ():
            result = xp.expand_dims(result, axis)
        return result
    if isinstance(ord, str) or abs(ord) not in BY_SUMS:
        raise TypeError(
            f"a matrix norm of order {ord!r}; 'fro', 'nuc', 1, 2, inf and their opposites are known"
        )
    summed = axes[BY_SUMS[abs(ord)]]
    (other,) = (axis for axis in axes if axis != summed)
    sums = xp.sum(xp.abs(x), summed, keepdims=True)
    result = (xp.max if ord > 0 else xp.min)(sums, other, keepdims=True)
    return result if keepdims else xp.squeeze(result, axes)


def converted(x: Tensor, dtype: Any) -> Tensor:
    return x if dtype is None else xp.cast(x, dtype)


def cond(x: Tensor, ord: Any = None) -> Tensor:
    """How much a system may enlarge an error."""
    if ord in (None, 2, -2):
        values = svdvals(x)
        largest, smallest = values[..., 0], values[..., -1]
        return smallest / largest if ord == -2 else largest / smallest
    return matrix_norm(x, ord) * matrix_norm(xp.inv(x), ord)


def normalize(x: Tensor, ord: Any = 2, axis: Any = -1, eps: Any = 0.0) -> Tensor:
    """x over its norm along an axis, or over eps where that is larger."""
    return x / xp.maximum(xp.norm(x, axis, True, ord), eps)
