"""The VJP of each op over whole arrays; see `pullbacks.py` for the form."""

from __future__ import annotations

import math
from typing import Any

from .pullbacks import Cotangents, zero

__all__ = ["zero"]  # the rows of both families read their VJPs from one module each


def spread(xp: Any, value: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    """Broadcast a reduction's result or cotangent back over x."""
    if axis is not None and not keepdims:
        axes = axis if isinstance(axis, tuple) else (axis,)
        for position in sorted(axes, key=lambda i: (i < 0, i if i >= 0 else -i)):
            value = xp.expand_dims(value, axis=position)
    return xp.broadcast_to(value, x)


def sum_(xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool) -> Cotangents:
    return (spread(xp, ct, x, axis, keepdims),)


def mean(xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool) -> Cotangents:
    return (spread(xp, ct, x, axis, keepdims) / _count(xp, x, axis),)


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
    chosen = xp.equal(x, spread(xp, y, x, axis, keepdims)) * 1.0
    number = xp.sum(chosen, axis=axis, keepdims=keepdims)
    return (chosen * spread(xp, ct / number, x, axis, keepdims),)


def prod(xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool) -> Cotangents:
    """The product of the others; of two zeros in one product the second derivative is lost."""
    is_zero = xp.equal(x, 0)
    filled = xp.where(is_zero, 1.0, x)
    zeros = xp.count_nonzero(is_zero, axis=axis, keepdims=keepdims)
    others = xp.where(
        xp.equal(zeros, 1), xp.prod(filled, axis=axis, keepdims=keepdims), 0.0
    )  # fmt: skip
    at_zero = spread(xp, ct * others, x, axis, keepdims)
    return (xp.where(is_zero, at_zero, spread(xp, ct * y, x, axis, keepdims) / filled),)


def norm(xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool, ord: float) -> Cotangents:
    """Zero where the norm is zero; ties share the largest of order inf."""
    if ord == math.inf:
        ct = xp.sign(x) * extreme(xp, ct, y, xp.abs(x), axis=axis, keepdims=keepdims)[0]
        return (ct,)
    if ord == 1:
        return (xp.sign(x) * spread(xp, ct, x, axis, keepdims),)
    safe = xp.where(xp.equal(y, 0), 1.0, y)
    if ord == 2:
        return (x * spread(xp, ct / safe, x, axis, keepdims),)
    whole = spread(xp, safe, x, axis, keepdims)
    size = xp.where(xp.equal(x, 0), whole, xp.abs(x))  # a power of 0 may be infinite
    share = xp.sign(x) * xp.pow(size / whole, ord - 1)
    return (share * spread(xp, ct, x, axis, keepdims),)


def logsumexp(xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool) -> Cotangents:
    """Zero where everything is -inf."""
    share = xp.softmax(x, axis=axis)
    nothing = spread(xp, xp.equal(y, -math.inf) * 1.0, x, axis, keepdims)
    share = xp.where(xp.equal(nothing, 1), 0.0, share)
    return (share * spread(xp, ct, x, axis, keepdims),)


def softmax(xp: Any, ct: Any, y: Any, x: Any, *, axis: Any) -> Cotangents:
    return (y * (ct - xp.sum(ct * y, axis=axis, keepdims=True)),)


def log_softmax(xp: Any, ct: Any, y: Any, x: Any, *, axis: Any) -> Cotangents:
    return (ct - xp.softmax(x, axis=axis) * xp.sum(ct, axis=axis, keepdims=True),)


def glu(xp: Any, ct: Any, y: Any, x: Any, *, axis: int) -> Cotangents:
    first, second = xp.half(x, 0, axis=axis), xp.half(x, 1, axis=axis)
    gate = xp.sigmoid(second)
    return (xp.concatenate((ct * gate, ct * first * gate * xp.sigmoid(-second)), axis=axis),)


def var(
    xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool, correction: float
) -> Cotangents:
    centered = x - xp.mean(x, axis=axis, keepdims=True)
    degrees = _count(xp, x, axis) - correction
    return (2.0 * centered * spread(xp, ct, x, axis, keepdims) / degrees,)


def std(
    xp: Any, ct: Any, y: Any, x: Any, *, axis: Any, keepdims: bool, correction: float
) -> Cotangents:
    """Zero where the deviation is zero, as torch has it."""
    inner = ct * 0.5 / xp.where(xp.equal(y, 0), 1.0, y)
    return var(xp, inner, y, x, axis=axis, keepdims=keepdims, correction=correction)


def sum_to(xp: Any, ct: Any, y: Any, x: Any, like: Any) -> Cotangents:
    return xp.broadcast_to(ct, x), None


def broadcast_to(xp: Any, ct: Any, y: Any, x: Any, like: Any) -> Cotangents:
    return xp.sum_to(ct, x), None


def expand_dims(xp: Any, ct: Any, y: Any, x: Any, *, axis: int) -> Cotangents:
    return (xp.sum(ct, axis=axis, keepdims=False),)


def matmul(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    return xp.matmul_left(ct, b, a), xp.matmul_right(a, ct, b)


# The sum of ct * (a @ b) is linear in each of the three: the VJPs of a product close among three ops.
def matmul_left(xp: Any, ct: Any, y: Any, cotangent: Any, b: Any, like: Any) -> Cotangents:
    return xp.matmul(ct, b), xp.matmul_right(ct, cotangent, b), None


def matmul_right(xp: Any, ct: Any, y: Any, a: Any, cotangent: Any, like: Any) -> Cotangents:
    return xp.matmul_left(cotangent, ct, a), xp.matmul(a, ct), None


def einsum(xp: Any, ct: Any, y: Any, *arrays: Any, subscripts: str) -> Cotangents:
    """One einsum each; ones stand where a letter belongs to that operand alone."""
    terms, _, result = subscripts.partition("->")
    names = terms.split(",")
    shares = []
    for i, name in enumerate(names):
        others = [*arrays[:i], *arrays[i + 1 :]]
        given = [result, *names[:i], *names[i + 1 :]]
        values = [ct, *others]
        letters = name.replace("...", ".")
        if not set(letters) <= set("".join(given)):
            given, values = [*given, name], [*values, xp.ones_like(arrays[i])]
        shares.append(xp.einsum(f"{','.join(given)}->{name}", *values))
    return tuple(shares)
