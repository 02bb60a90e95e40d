"""The VJP of each op over whole arrays; see `pullbacks.py` for the form."""

from __future__ import annotations

from typing import Any

from .pullbacks import Cotangents, zero

__all__ = ["zero"]  # the rows of both families read their VJPs from one module each


def _spread(xp: Any, value: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    """Broadcast a reduction's result or cotangent back over x."""
    if axis is not None and not keepdims:
        axes = axis if isinstance(axis, tuple) else (axis,)
        for position in sorted(axes, key=lambda i: (i < 0, i if i >= 0 else -i)):
            value = xp.expand_dims(value, axis=position)
    return xp.broadcast_to(value, x)


def sum_(xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool) -> Cotangents:
    return (_spread(xp, ct, x, axis, keepdims),)


def mean(xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool) -> Cotangents:
    return (_spread(xp, ct, x, axis, keepdims) / _count(xp, x, axis),)


def _count(xp: Any, x: Any, axis: Any) -> Any:
    """The number of elements that one result combines, a symbolic integer."""
    if axis is None:
        return xp.size(x)
    total: Any = 1
    for position in axis if isinstance(axis, tuple) else (axis,):
        total = total * xp.dim(x, position)
    return total


def extreme(xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool) -> Cotangents:
    """Ties share the cotangent equally."""
    chosen = xp.equal(x, _spread(xp, y, x, axis, keepdims)) * 1.0
    number = xp.sum(chosen, axis=axis, keepdims=keepdims)
    return (chosen * _spread(xp, ct / number, x, axis, keepdims),)


def norm(xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool) -> Cotangents:
    """Zero where the norm is zero."""
    safe = xp.where(xp.equal(y, 0), 1.0, y)
    return (x * _spread(xp, ct / safe, x, axis, keepdims),)


def var(
    xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool, correction: float
) -> Cotangents:
    centered = x - xp.mean(x, axis=axis, keepdims=True)
    degrees = _count(xp, x, axis) - correction
    return (2.0 * centered * _spread(xp, ct, x, axis, keepdims) / degrees,)


def std(
    xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool, correction: float
) -> Cotangents:
    inner = ct * 0.5 / y
    return var(xp, inner, y, x, axis=axis, keepdims=keepdims, correction=correction)


def sum_to(xp: Any, ct: Any, y: Any, x: Any, like: Any) -> Cotangents:
    return xp.broadcast_to(ct, x), None


def broadcast_to(xp: Any, ct: Any, y: Any, x: Any, like: Any) -> Cotangents:
    return xp.sum_to(ct, x), None


def expand_dims(xp: Any, ct: Any, y: Any, x: Any, *, axis: int) -> Cotangents:
    return (xp.sum(ct, axis=axis, keepdims=False),)
