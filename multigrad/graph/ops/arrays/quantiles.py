"""The median, quantiles, and the weight of each element in them."""

from __future__ import annotations

import math
from typing import Any

from ..attributes import AXES, FRACTION, flag
from ..numerics import Array, Axis
from ..results import kept, reduced
from ..table import Composed, Cotangents, op, zero
from .reductions import reduction, spread


def as_axes(x: Array, axis: Axis) -> tuple[int, ...]:
    """Return the axes to reduce over; a scalar has none."""
    if axis is None or x.ndim == 0:
        return tuple(range(x.ndim))
    return axis if isinstance(axis, tuple) else (axis,)


def neighbors(n: int, q: float) -> tuple[int, int, float]:
    """Return the positions around the q-quantile of n sorted values, and the second's weight."""
    place = q * (n - 1)
    low = math.floor(place)
    return low, min(low + 1, n - 1), place - low


def middle(xp: Any, x: Any, *, axis: Any, keepdims: bool) -> Any:
    return xp.quantile(x, axis=axis, keepdims=keepdims, q=0.5)


# --- in terms of other ops -----------------------------------------------------------------------


def in_rows(xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """Return x with the given axes merged into one, at the end."""
    kept, moved = x.ndim - len(axes), moved_last(xp, x, axes)
    lengths = [xp.dim(moved, axis=i) for i in range(x.ndim)]
    return xp.reshape(moved, shape=(*lengths[:kept], math.prod(lengths[kept:])))


def moved_last(xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
    last = tuple(range(x.ndim - len(axes), x.ndim))
    return xp.moveaxis(x, source=axes, destination=last) if axes else x


def neighbor(xp: Any, length: Any, q: float, like: Any) -> tuple[Any, Any]:
    """Return the position below the q-quantile and the weight of the next one.

    Both are numbers, but tensors where a framework knows the length only at run time.
    """
    if not hasattr(length, "dtype"):
        low, _, weight = neighbors(length, q)
        return low, weight
    # In float64: positions beyond 2**24 are no longer exact in float32.
    place = q * xp.astype(xp.maximum(length - 1, 0), dtype="float64")
    low = xp.floor(place)
    return xp.astype(low, dtype="int64"), xp.astype(place - low, dtype=like.dtype)


def between(xp: Any, x: Any, *, axis: Axis, keepdims: bool, q: float) -> Any:
    axes = as_axes(x, axis)
    rows = in_rows(xp, x, axes)
    length = xp.dim(rows, axis=-1)
    low, weight = neighbor(xp, length, q, x)
    # NaN after each row: rows without elements read it, and NaN sorts last.
    padded = xp.pad(rows, widths=((0, 1),), fill=math.nan)
    rows = xp.sort(padded, axis=-1, descending=False)
    first, largest = rows[..., low], rows[..., length - 1]
    result = first
    if hasattr(weight, "dtype") or weight:
        result = first * (1 - weight) + rows[..., low + 1] * weight
    # A weight known only at run time may be 0 next to an infinity, and inf * 0 is NaN.
    if hasattr(weight, "dtype"):
        result = xp.where(weight == 0, first, result)
    result = xp.where(xp.isnan(largest), largest, result)
    for position in sorted(i % x.ndim for i in axes) if keepdims else ():
        result = xp.expand_dims(result, axis=position)
    return result


def shares(xp: Any, x: Any, *, axis: Axis, q: float) -> Any:
    axes = as_axes(x, axis)
    rows = in_rows(xp, x, axes)
    low, weight = neighbor(xp, xp.dim(rows, axis=-1), q, x)
    order = xp.argsort(rows, axis=-1, descending=False)
    # The inverse permutation: the position of each element in its sorted row.
    place = xp.argsort(order, axis=-1, descending=False)
    own, next_one = (xp.astype(place == at, dtype=x.dtype) for at in (low, low + 1))
    moved = moved_last(xp, x, axes)
    weights = xp.reshape_like(own * (1 - weight) + next_one * weight, moved)
    last = tuple(range(x.ndim - len(axes), x.ndim))
    return xp.moveaxis(weights, source=last, destination=axes) if axes else weights


def quantile_vjp(
    xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool, q: float
) -> Cotangents:
    weights = xp.quantile_weights(x, q, axis=axis)
    return (weights * spread(xp, ct, x, axis, keepdims),)


MEDIAN = reduction(
    "median",
    Composed("median"),
    None,
    "The middle value, the mean of the two middle ones if their number is even; NaN propagates.",
    made_of=middle,
    rounds=False,
)
QUANTILE = op(
    "quantile",
    "x",
    axis=AXES,
    keepdims=flag(False),
    q=FRACTION,
    numpy=Composed("quantile"),
    vjp=quantile_vjp,
    result=reduced,
    doc="The q-quantile, linear between neighbors; NaN propagates.",
    made_of=between,
    composed=True,
)
QUANTILE_WEIGHTS = op(
    "quantile_weights",
    "x",
    q=FRACTION,
    axis=AXES,
    numpy=Composed("quantile_weights"),
    vjp=zero,
    result=kept,
    doc="What each element contributes to the q-quantile.",
    made_of=shares,
    in_vjps=True,
)
