"""Functions that array libraries share and the op table lacks, composed from its ops.

They read as functions of a tensor, so that every dialect and the tensor methods can point at them.
"""

from __future__ import annotations

import math
from typing import Any

from ...graph.ir.types import BOOL, WHOLE
from ...trace.xp import all as xp
from ..symbols.dtypes import own_dtype

Tensor = Any


def addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
    return xp.add(x, xp.multiply(_times(value, a), b))


def addcdiv(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
    return xp.add(x, xp.divide(_times(value, a), b))


def _times(value: Any, a: Tensor) -> Tensor:
    """The factor comes first, as in torch: the product of the tensors may overflow."""
    return a if type(value) in (int, float) and value == 1 else xp.multiply(value, a)


def bernoulli(x: Tensor, p: Any = None, *, generator: Any = None) -> Tensor:
    """1 with probability x, or p, else 0."""
    _refuse_generator(generator)
    return xp.cast_like(xp.rand_like(x) < (x if p is None else p), x)


def bernoulli_anew(x: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    """The same in place of whatever x is."""
    return bernoulli(x, p, generator=generator)


def uniform(x: Tensor, low: Any = 0.0, high: Any = 1.0, *, generator: Any = None) -> Tensor:
    _refuse_generator(generator)
    draw = xp.rand_like(x)
    return low + (high - low) * draw


def normal(x: Tensor, mean: Any = 0.0, std: Any = 1.0, *, generator: Any = None) -> Tensor:
    _refuse_generator(generator)
    return mean + std * xp.randn_like(x)


def _refuse_generator(generator: Any) -> None:
    if generator is not None:
        raise TypeError("a generator; draws follow the key of xg.use(..., key=...)")


# --- comparisons, logarithms ----------------------------------------------------------------------
def isposinf(x: Tensor) -> Tensor:
    return xp.equal(x, math.inf)


def isneginf(x: Tensor) -> Tensor:
    return xp.equal(x, -math.inf)


def isclose(
    x1: Tensor, x2: Tensor, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Equal, or finite and no further apart than atol + rtol |x2|."""
    wide = xp.divide(x2, 1) if own_dtype(x2) in (BOOL, *WHOLE) else x2  # else differences overflow
    limit = xp.add(atol, xp.multiply(rtol, xp.abs(wide)))
    near = xp.less_equal(xp.abs(xp.subtract(x1, wide)), limit)
    finite = xp.isfinite(x1) & xp.isfinite(x2)
    close = xp.equal(x1, x2) | (near & finite)
    return close | (xp.isnan(x1) & xp.isnan(x2)) if equal_nan else close


def allclose(
    x1: Tensor, x2: Tensor, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False
) -> Tensor:
    return xp.all(isclose(x1, x2, rtol, atol, equal_nan))


def logaddexp2(x1: Tensor, x2: Tensor, scale: float = math.log(2)) -> Tensor:
    """log2(2^x1 + 2^x2), by the logarithm of 2 that a library takes."""
    sum_ = xp.logaddexp(xp.multiply(x1, scale), xp.multiply(x2, scale))
    return xp.divide(sum_, scale)


def entr(x: Tensor) -> Tensor:
    """-x log(x), zero at zero, -inf below."""
    # Below 0 its derivative is NaN in all libraries, as that of the logarithm is.
    log = xp.log(xp.where(xp.equal(x, 0), 1.0, x))
    return xp.where(xp.less(x, 0), -math.inf, -xp.multiply(x, log))


def digamma(x: Tensor) -> Tensor:
    """NaN at its pole at zero, as XLA and TensorFlow have it."""
    return xp.where(xp.equal(x, 0), math.nan, xp.digamma(x))


def polygamma(n: Any, x: Tensor, even_at_poles: float = -math.inf) -> Tensor:
    """The n-th derivative of digamma, below zero by reflection, as libraries have it there.

    Args:
        even_at_poles: what those of even order are at zero and the negative integers.
    """
    order = int(n)
    if order != n:
        raise TypeError(f"polygamma of order {n}")
    if not order:
        return xp.digamma(x)
    below, is_pole = xp.less(x, 0), xp.less_equal(x, 0) & xp.equal(x, xp.floor(x))
    right = xp.polygamma(order, xp.where(below, 1.0 - x, x))
    is_left = below & ~is_pole
    apart = xp.where(is_left, x - xp.round(x), 0.5)  # from the nearest pole, exactly
    cosine = xp.sin(math.pi * (0.5 - xp.abs(apart)))  # 0 between two poles
    slope = _slope_of_cotangent(order, cosine / xp.sin(math.pi * apart))
    found = xp.where(is_left, (-1) ** order * right - math.pi ** (order + 1) * slope, right)
    return xp.where(is_pole, math.inf if order % 2 else even_at_poles, found)


def _slope_of_cotangent(order: int, c: Tensor) -> Tensor:
    """Its derivative of this order, a polynomial in c, which is even or odd: so c^2 alone grows."""
    factors = [0, 1]  # of c^0, c^1: the derivative of c^k is -k (c^(k - 1) + c^(k + 1))
    for _ in range(order):
        after = [0] * (len(factors) + 1)
        for k, factor in enumerate(factors[1:], 1):
            after[k - 1] -= k * factor
            after[k + 1] -= k * factor
        factors = after
    is_odd = (order + 1) % 2
    value: Any = float(factors[-1])
    for factor in reversed(factors[is_odd:-1:2]):
        value = value * (c * c) + float(factor)
    return value * c if is_odd else value


def rel_entr(x: Tensor, y: Tensor) -> Tensor:
    """x log(x / y); 0 where x is 0 and y is not negative, else infinite outside of x, y > 0."""
    inside = xp.greater(x, 0) & xp.greater(y, 0)
    safe_x, safe_y = xp.where(inside, x, 1.0), xp.where(inside, y, 1.0)
    at_zero = xp.equal(x, 0) & xp.greater_equal(y, 0)
    outside = xp.where(at_zero, 0.0, xp.where(xp.isnan(xp.add(x, y)), math.nan, math.inf))
    return xp.where(inside, xp.multiply(safe_x, xp.log(xp.divide(safe_x, safe_y))), outside)
