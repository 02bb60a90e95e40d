"""Norms of vectors and matrices under the names that libraries give them."""

from __future__ import annotations

import math
from typing import Any

from ...trace.xp import all as xp
from .parts import rank

Tensor = Any
BY_SUMS = {1: -2, math.inf: -1}  # the axis along which a matrix norm of that order sums


def norm(x: Tensor, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Tensor:
    """NumPy's: without an order of all elements as a vector, along two axes of matrices."""
    if axis is not None and not isinstance(axis, int):
        axis = tuple(axis)
    if ord is None:
        return xp.norm(x, axis, keepdims)
    if axis is None:
        axis = tuple(range(rank(x)))
    if isinstance(axis, int) or len(axis) == 1:
        return vector_norm(x, ord, axis, keepdims)
    if len(axis) != 2:
        raise TypeError(f"a norm of order {ord!r} over {len(axis)} axes; it takes one or two")
    return matrix_norm(x, ord, axis, keepdims)


def vector_norm(x: Tensor, ord: Any = 2, axis: Any = None, keepdims: bool = False) -> Tensor:
    """A norm of any order over axes, all of them where none is named."""
    axis = tuple(axis) if isinstance(axis, list) else axis
    if not isinstance(ord, int | float):
        raise TypeError(f"a norm of order {ord!r} of vectors; a number is known")
    if ord > 0:
        return xp.norm(x, axis, keepdims, ord)
    sizes = xp.abs(x)
    if ord == 0:
        return xp.sum(xp.where(xp.equal(sizes, 0), 0.0, 1.0), axis, keepdims)
    if ord == -math.inf:
        return xp.min(sizes, axis, keepdims)
    return xp.pow(xp.sum(xp.pow(sizes, ord), axis, keepdims), 1.0 / ord)


def matrix_norm(x: Tensor, ord: Any, axes: Any = (-2, -1), keepdims: bool = False) -> Tensor:
    """Frobenius's, or the largest (of a negative order, smallest) sum along an axis."""
    axes = tuple(axes)
    if ord == "fro":
        return xp.norm(x, axes, keepdims)
    if isinstance(ord, str) or abs(ord) not in BY_SUMS:
        raise TypeError(
            f"a matrix norm of order {ord!r}; 'fro', 'nuc', 1, 2, inf and their opposites are known"
        )
    summed = axes[BY_SUMS[abs(ord)]]
    (other,) = (axis for axis in axes if axis != summed)
    sums = xp.sum(xp.abs(x), summed, keepdims=True)
    result = (xp.max if ord > 0 else xp.min)(sums, other, keepdims=True)
    return result if keepdims else xp.squeeze(result, axes)
