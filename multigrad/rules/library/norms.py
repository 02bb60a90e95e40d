"""Norms and means as rules need them: of what is scaled by its largest magnitude, so that no square
and no sum of finite numbers overflows, and none underflows beside its peers.
"""

from __future__ import annotations

import math
from typing import Any

from ...trace.xp import all as xp

Tensor = Any
Axes = tuple[int, ...] | None
Number = Any


def peak(x: Tensor, axes: Axes = None) -> Tensor:
    """The largest |x| along axes, which stay as ones; 1 where all are zero, NaN where one is."""
    return one_for_zero(xp.norm(x, axis=axes, keepdims=True, ord=math.inf))


def one_for_zero(x: Tensor) -> Tensor:
    """1 where x is 0, to divide by."""
    return xp.where(x == 0.0, 1.0, x)


def over(x: Tensor, top: Tensor) -> Tensor:
    """x / top, also where the compiler multiplies by a 1 / top that is flushed to zero."""
    # A power of two, so that scaling both by it is exact.
    step = xp.where(top > 1.0, 0.125, 1.0)
    return (x * step) / (top * step)


def norm(x: Tensor, axes: Axes = None) -> tuple[Tensor, Tensor]:
    """The Euclidean norm as a product: the peak, and a factor from 1 on, or 0."""
    top = peak(x, axes)
    return top, xp.norm(over(x, top), axis=axes, keepdims=True)


def mean(x: Tensor, axes: Axes) -> Tensor:
    """The mean along axes, which stay as ones."""
    top = peak(x, axes)
    return top * xp.mean(over(x, top), axis=axes, keepdims=True)


def mean_magnitude(x: Tensor) -> Tensor:
    """The mean of |x| over all axes but the last; |x| itself where there is none other."""
    axes = tuple(range(x.ndim - 1))
    return mean(abs(x), axes) if axes else abs(x)


def clip_rms(x: Tensor, threshold: Number) -> Tensor:
    """x * min(1, threshold / rms(x)), x itself up to the threshold."""
    top, factor = norm(x)
    rms = factor / xp.sqrt(1.0 * x.size)
    limited = over(x, top) * (threshold / one_for_zero(rms))
    return xp.where(top * rms > threshold, limited, x)


def normalize(x: Tensor, scale: Number, eps: Number) -> Tensor:
    """x * scale / (norm(x) + eps); 0 where all of it is 0."""
    top, factor = norm(x)
    unit = xp.maximum(top, eps)  # beside which neither the norm nor eps overflows
    total = factor * over(top, unit) + eps / unit
    scaled = over(x, unit) * scale / one_for_zero(total)
    # Beside a norm of 0 the total is eps, which XLA divides by as 0 where it is subnormal.
    return xp.where(factor == 0.0, 0.0, scaled)


def clip_units(x: Tensor, tensor: Tensor, clipping: Number, eps: Number) -> Tensor:
    """x with the norm of each unit at most clipping * max(norm of the tensor's unit, eps).

    A unit is all of a vector, and what one output of a layer is made of: along axis 0 of two or
    three, along all but the last of four or five. A tensor with one axis longer than 1 is a vector.
    """
    whole = _clip_along(x, tensor, None, clipping, eps)
    if tensor.ndim < 2:
        return whole
    axes = (0,) if tensor.ndim < 4 else tuple(range(tensor.ndim - 1))
    # In arithmetic alone, so that one graph serves all lengths.
    longer = sum(xp.minimum(1.0 * tensor.shape[i] - 1.0, 1.0) for i in range(tensor.ndim))
    return xp.where(longer > 1.5, _clip_along(x, tensor, axes, clipping, eps), whole)


def _clip_along(x: Tensor, tensor: Tensor, axes: Axes, clipping: Number, eps: Number) -> Tensor:
    top, factor = norm(x, axes)
    largest, length = norm(tensor, axes)
    # Brock et al., 2021 (arXiv 2102.06171), eq. 3.
    limit = xp.maximum((clipping * largest) * length, clipping * eps)
    limited = over(x, top) * (limit / xp.maximum(one_for_zero(factor), 1e-6 / top))
    return xp.where(top * factor > limit, limited, x)
