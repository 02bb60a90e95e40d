"""The VJP of each op: named functions `(xp, cotangent, result, *operands, **attrs)` -> one cotangent per operand.

They are written with the recording namespace `xp` (see `record.py`), so a VJP is itself a graph that can be
lowered, shown and differentiated again. None means zero. Broadcasting is undone by `derivatives.py`.
"""

from __future__ import annotations

import math
from typing import Any

Cotangents = tuple[Any, ...]


def add(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    return ct, ct


def sub(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    return ct, -ct


def mul(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    return ct * b, ct * a


def div(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    return ct / b, -ct * (y / b)


def neg(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (-ct,)


def power(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    safe = xp.where(xp.greater(a, 0), a, 1.0)
    by_a = xp.where(xp.equal(b, 0), 0.0, b * xp.pow(a, b - 1))
    return ct * by_a, ct * xp.where(xp.greater(a, 0), y * xp.log(safe), 0.0)


def absolute(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * xp.sign(x),)


def zero(xp: Any, ct: Any, y: Any, *operands: Any, **attrs: Any) -> Cotangents:
    """Piecewise constant: the derivative is zero wherever it exists."""
    return (None,) * len(operands)


def maximum(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    share = xp.where(xp.equal(a, b), 0.5, xp.where(xp.greater(a, b), 1.0, 0.0))
    return ct * share, ct * (1.0 - share)


def minimum(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    share = xp.where(xp.equal(a, b), 0.5, xp.where(xp.less(a, b), 1.0, 0.0))
    return ct * share, ct * (1.0 - share)


def square(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * (2.0 * x),)


def sqrt(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * 0.5 / y,)


def rsqrt(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * -0.5 * y / x,)


def reciprocal(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (-ct * y * y,)


def exp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * y,)


def expm1(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * xp.exp(x),)


def log(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct / x,)


def log1p(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct / (1.0 + x),)


def sin(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * xp.cos(x),)


def cos(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (-ct * xp.sin(x),)


def atan(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct / (1.0 + x * x),)


def tanh(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * (1.0 - y * y),)


def clip(xp: Any, ct: Any, y: Any, x: Any, low: Any, high: Any) -> Cotangents:
    """The bounds belong to the inside, as in torch."""
    inside = xp.greater_equal(x, low) & xp.less_equal(x, high)
    below, above = xp.less(x, low), xp.greater(x, high)
    return ct * inside, ct * below, ct * above


def where(xp: Any, ct: Any, y: Any, condition: Any, a: Any, b: Any) -> Cotangents:
    return None, xp.where(condition, ct, 0.0), xp.where(condition, 0.0, ct)


def cast(xp: Any, ct: Any, y: Any, x: Any, *, dtype: str) -> Cotangents:
    return (xp.cast_like(ct, x),)


def full_like(xp: Any, ct: Any, y: Any, x: Any, value: Any, *, dtype: Any) -> Cotangents:
    return None, ct


def nan_to_num(
    xp: Any, ct: Any, y: Any, x: Any, *, nan: float, posinf: float | None, neginf: float | None
) -> Cotangents:
    return (ct * xp.isfinite(x),)


def remainder(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    return ct, -ct * xp.floor_divide(a, b)


def fmod(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    return ct, -ct * xp.round((a - y) / b)


def fmax(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    larger = xp.greater(a, b) | xp.isnan(b)
    share = xp.where(xp.equal(a, b), 0.5, xp.where(larger, 1.0, 0.0))
    return ct * share, ct * (1.0 - share)


def fmin(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    smaller = xp.less(a, b) | xp.isnan(b)
    share = xp.where(xp.equal(a, b), 0.5, xp.where(smaller, 1.0, 0.0))
    return ct * share, ct * (1.0 - share)


def copysign(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    return ct * xp.where(xp.logical_xor(xp.signbit(a), xp.signbit(b)), -1.0, 1.0), None


def hypot(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    length = xp.where(xp.equal(y, 0), 1.0, y)
    return ct * (a / length), ct * (b / length)


def atan2(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    distance = xp.hypot(a, b)  # its square may overflow
    length = xp.where(xp.equal(distance, 0), 1.0, distance)
    return ct * (b / length / length), -ct * (a / length / length)


def lerp(xp: Any, ct: Any, y: Any, a: Any, b: Any, weight: Any) -> Cotangents:
    return ct * (1.0 - weight), ct * weight, ct * (b - a)


def frac(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct,)


def cbrt(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct / (3.0 * y * y),)


def exp2(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * (y * math.log(2)),)


def log2(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct / x * (1 / math.log(2)),)


def log10(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct / x * (1 / math.log(10)),)


def logaddexp(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    return ct * xp.sigmoid(a - b), ct * xp.sigmoid(b - a)


def xlogy(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    none = xp.equal(a, 0)
    by_a = xp.log(xp.where(none & xp.less_equal(b, 0), 1.0, b))
    return ct * by_a, ct * xp.where(none, 0.0, a / xp.where(none, 1.0, b))


def xlog1py(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    none = xp.equal(a, 0)
    by_a = xp.log1p(xp.where(none & xp.less_equal(b, -1), 0.0, b))
    return ct * by_a, ct * xp.where(none, 0.0, a / xp.where(none, 1.0, 1.0 + b))


def tan(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * (1.0 + y * y),)


def asin(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * xp.rsqrt((1.0 - x) * (1.0 + x)),)


def acos(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (-ct * xp.rsqrt((1.0 - x) * (1.0 + x)),)


def sinh(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * xp.cosh(x),)


def cosh(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * xp.sinh(x),)


def asinh(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct / xp.hypot(x, 1.0),)


def acosh(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct / (xp.sqrt(x - 1.0) * xp.sqrt(x + 1.0)),)


def atanh(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct / ((1.0 - x) * (1.0 + x)),)


def deg2rad(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (xp.deg2rad(ct),)


def rad2deg(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (xp.rad2deg(ct),)
