"""Functions that array libraries share and the op table lacks, composed from its ops.

They read as functions of a tensor, so that every dialect and the tensor methods can point at them.
"""

from __future__ import annotations

import math
from typing import Any

from ...trace.xp import all as xp

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
    limit = xp.add(atol, xp.multiply(rtol, xp.abs(x2)))
    near = xp.less_equal(xp.abs(xp.subtract(x1, x2)), limit)
    finite = xp.isfinite(x1) & xp.isfinite(x2)
    close = xp.equal(x1, x2) | (near & finite)
    return close | (xp.isnan(x1) & xp.isnan(x2)) if equal_nan else close


def allclose(
    x1: Tensor, x2: Tensor, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False
) -> Tensor:
    return xp.all(isclose(x1, x2, rtol, atol, equal_nan))


def logaddexp2(x1: Tensor, x2: Tensor) -> Tensor:
    """log2(2^x1 + 2^x2)."""
    scale = math.log(2)
    sum_ = xp.logaddexp(xp.multiply(x1, scale), xp.multiply(x2, scale))
    return xp.divide(sum_, scale)


def entr(x: Tensor) -> Tensor:
    """-x log(x), zero at zero, -inf below."""
    # Below 0 its derivative is NaN in all libraries, as that of the logarithm is.
    log = xp.log(xp.where(xp.equal(x, 0), 1.0, x))
    return xp.where(xp.less(x, 0), -math.inf, -xp.multiply(x, log))


def rel_entr(x: Tensor, y: Tensor) -> Tensor:
    """x log(x / y); 0 where x is 0 and y is not negative, else infinite outside of x, y > 0."""
    inside = xp.greater(x, 0) & xp.greater(y, 0)
    safe_x, safe_y = xp.where(inside, x, 1.0), xp.where(inside, y, 1.0)
    at_zero = xp.equal(x, 0) & xp.greater_equal(y, 0)
    outside = xp.where(at_zero, 0.0, xp.where(xp.isnan(xp.add(x, y)), math.nan, math.inf))
    return xp.where(inside, xp.multiply(safe_x, xp.log(xp.divide(safe_x, safe_y))), outside)
