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
    return ct / b, -ct * y / b


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


def sigmoid(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * (y * (1.0 - y)),)


def erf(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * (2.0 / math.sqrt(math.pi) * xp.exp(-(x * x))),)


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


def relu(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * xp.greater(x, 0),)


def relu6(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * (xp.greater(x, 0) & xp.less(x, 6)),)


def leaky_relu(xp: Any, ct: Any, y: Any, x: Any, *, slope: float) -> Cotangents:
    return (ct * xp.where(xp.greater(x, 0), 1.0, slope),)


def elu(xp: Any, ct: Any, y: Any, x: Any, *, alpha: float) -> Cotangents:
    return (ct * xp.where(xp.greater(x, 0), 1.0, alpha * xp.exp(xp.minimum(x, 0.0))),)


def gelu(xp: Any, ct: Any, y: Any, x: Any, *, approximate: bool) -> Cotangents:
    """Exact: Phi(x) + x phi(x). Approximate: the derivative of the tanh form (Hendrycks and Gimpel, 2016)."""
    if approximate:
        scale = math.sqrt(2 / math.pi)
        x = xp.clip(x, -10.0, 10.0)  # t is 1 there in every dtype, and the cube must not overflow
        t = xp.tanh(scale * (x + 0.044715 * x * x * x))
        slope = scale * (1.0 + 3 * 0.044715 * x * x)
        return (ct * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope),)
    cdf = 0.5 * (1.0 + xp.erf(x * math.sqrt(0.5)))
    pdf = xp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return (ct * (cdf + x * pdf),)


def silu(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    s = xp.sigmoid(x)
    return (ct * (s * (1.0 + x * (1.0 - s))),)


def softplus(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    return (ct * xp.sigmoid(x),)
