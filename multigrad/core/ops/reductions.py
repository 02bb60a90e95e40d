"""Reductions; 16-bit values sum in float32, round once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..ir.op import AXES, INT64, ORDER, Op, flag, reduced
from .numerics import Array, Axis, widened
from .properties import linear
from .table import Cotangents, op, zero


def reduction(name: str, numpy: Any, vjp: Any, doc: str, **fields: Any) -> Op:
    """Declare a reduction over `axis`: an int, a tuple, or None for all axes."""
    fields = {"axis": AXES, **fields, "keepdims": flag(False)}
    return op(name, "x", numpy=numpy, vjp=vjp, doc=doc, result=reduced, **fields)


def over(x: Array, axis: Axis) -> Axis:
    """Return the axes to reduce over; as in torch, a scalar has none, whatever is given."""
    return () if x.ndim == 0 else axis


def over_axes(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return a reduction of NumPy, or of a library like it, as an op."""

    def call(x: Array, *, axis: Axis, **attrs: Any) -> Array:
        return function(x, axis=over(x, axis), **attrs)

    call.__name__ = call.__qualname__ = function.__name__
    return call


def spread(xp: Any, value: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    """Broadcast a reduction's result or cotangent back over x."""
    if axis is not None and not keepdims:
        axes = axis if isinstance(axis, tuple) else (axis,)
        # In this order each insertion leaves the axes still to come where they are.
        for position in sorted(axes, key=lambda i: (i < 0, i if i >= 0 else -i)):
            value = xp.expand_dims(value, axis=position)
    return xp.broadcast_to(value, x)


def count_over(xp: Any, x: Any, axis: Any) -> Any:
    if axis is None:
        return xp.size(x)
    total: Any = 1
    for position in axis if isinstance(axis, tuple) else (axis,):
        total = total * xp.dim(x, axis=position)
    return total


ANY = reduction("any", over_axes(np.any), zero, "At least one.", coerce="bool")
ALL = reduction("all", over_axes(np.all), zero, "Every one.", coerce="bool")

# --- sums and extremes -------------------------------------------------------------------------


def sum_vjp(xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool) -> Cotangents:
    return (spread(xp, ct, x, axis, keepdims),)


@widened
def mean(x: Array, *, axis: Axis, keepdims: bool) -> Array:
    total = np.sum(x, axis=over(x, axis), keepdims=keepdims)
    return total / x.dtype.type(x.size // max(np.size(total), 1))


def mean_vjp(xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool) -> Cotangents:
    return (spread(xp, ct, x, axis, keepdims) / count_over(xp, x, axis),)


def extreme_vjp(xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool) -> Cotangents:
    ties = xp.equal(x, spread(xp, y, x, axis, keepdims)) * 1.0
    # Ties share the cotangent equally.
    count = xp.sum(ties, axis=axis, keepdims=keepdims)
    return (ties * spread(xp, ct / count, x, axis, keepdims),)


SUM = reduction(
    "sum",
    widened(over_axes(np.sum)),
    sum_vjp,
    "The sum; 0 if there are no elements.",
    degree=linear,
    integer=INT64,
)
MEAN = reduction("mean", mean, mean_vjp, "The mean; NaN if there are no elements.", degree=linear)
MAX = reduction(
    "max",
    over_axes(np.max),
    extreme_vjp,
    "The largest; NaN propagates.",
    on_bools=ANY,
    integer=True,
)
MIN = reduction(
    "min",
    over_axes(np.min),
    extreme_vjp,
    "The smallest; NaN propagates.",
    on_bools=ALL,
    integer=True,
)

# --- norms --------------------------------------------------------------------------------------


@widened
def norm(x: Array, *, axis: Axis, keepdims: bool, ord: float) -> Array:
    axis, size = over(x, axis), np.abs(x)
    if ord == np.inf:
        return np.max(size, axis=axis, keepdims=keepdims, initial=0)
    if ord == 1:
        return np.sum(size, axis=axis, keepdims=keepdims)
    # Powers may overflow, as in every framework.
    if ord == 2:
        return np.sqrt(np.sum(np.square(x), axis=axis, keepdims=keepdims))
    number = x.dtype.type
    return np.sum(size ** number(ord), axis=axis, keepdims=keepdims) ** number(1 / ord)


def root_of_powers(xp: Any, x: Any, *, axis: Axis, keepdims: bool, ord: float) -> Any:
    if ord == math.inf:
        reduce = xp.sum if 0 in tuple(x.shape) else xp.max
        # Some frameworks know only at run time that there are no elements; 0.0 is their maximum.
        return xp.maximum(reduce(xp.abs(x), axis=axis, keepdims=keepdims), 0.0)
    if ord == 1:
        return xp.sum(xp.abs(x), axis=axis, keepdims=keepdims)
    if ord == 2:
        return xp.sqrt(xp.sum(x * x, axis=axis, keepdims=keepdims))
    return xp.sum(xp.abs(x) ** ord, axis=axis, keepdims=keepdims) ** (1 / ord)


def norm_vjp(
    xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool, ord: float
) -> Cotangents:
    if ord == math.inf:
        ct = xp.sign(x) * extreme_vjp(xp, ct, y, xp.abs(x), axis=axis, keepdims=keepdims)[0]
        return (ct,)
    if ord == 1:
        return (xp.sign(x) * spread(xp, ct, x, axis, keepdims),)
    # Zero where the norm is zero; for order inf, ties share the cotangent.
    divisor = xp.where(xp.equal(y, 0), 1.0, y)
    if ord == 2:
        return (x * spread(xp, ct / divisor, x, axis, keepdims),)
    norms = spread(xp, divisor, x, axis, keepdims)
    size = xp.where(xp.equal(x, 0), norms, xp.abs(x))  # a power of 0 may be infinite
    share = xp.sign(x) * xp.pow(size / norms, ord - 1)
    return (share * spread(xp, ct, x, axis, keepdims),)


NORM = reduction(
    "norm",
    norm,
    norm_vjp,
    "The norm of order `ord` > 0 (2: Euclidean); inf where powers overflow.",
    ord=ORDER,
    composed=True,
    made_of=root_of_powers,
)

# --- sums of exponentials ----------------------------------------------------------------------
