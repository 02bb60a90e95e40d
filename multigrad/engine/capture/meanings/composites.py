"""Functions that array libraries share and the op table lacks, composed from its ops.

They take tensors, so dialects and tensor methods use them directly.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....core import ops
from ....core.ir.op import BOOL, INT32, WHOLE, is_float
from ....core.trace.trace import Value, apply, cast, copy_of
from ....core.trace.xp import all as xp
from ..symbols import own_dtype

Tensor = Any


def addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
    return xp.add(x, xp.multiply(scaled(a, value), b))


def addcdiv(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
    return xp.add(x, xp.divide(scaled(a, value), b))


def scaled(x: Any, factor: Any) -> Any:
    # The factor comes first, as in torch: the product of the two tensors may overflow.
    return x if type(factor) in (int, float) and factor == 1 else xp.multiply(factor, x)


def bernoulli(x: Tensor, p: Any = None, *, generator: Any = None) -> Tensor:
    _refuse_generator(generator)
    return xp.cast_like(xp.rand_like(x) < (x if p is None else p), x)


def bernoulli_anew(x: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    # For `x.bernoulli_(p)`, whose result does not depend on the values of x.
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
        raise TypeError(
            "a generator, or a draw with a seed; draws follow the key of xg.use(..., key=...)"
        )


def divide_no_nan(x1: Tensor, x2: Tensor) -> Tensor:
    is_zero = xp.equal(x2, 0)
    return xp.where(is_zero, 0.0, xp.divide(x1, xp.where(is_zero, 1.0, x2)))


def as_condition(condition: Any) -> Any:
    """Return a condition as bools: of numbers all but 0 are true."""
    if isinstance(condition, Value) and condition.node.type.dtype != BOOL:
        return condition != 0
    return condition


def where(condition: Any, x: Any = None, y: Any = None) -> Tensor:
    if x is None or y is None:
        raise TypeError("where with a condition alone gives indices; give both values")
    return xp.where(as_condition(condition), x, y)


def isposinf(x: Tensor) -> Tensor:
    return xp.equal(x, math.inf)


def isneginf(x: Tensor) -> Tensor:
    return xp.equal(x, -math.inf)


def isclose(
    x1: Tensor, x2: Tensor, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Return where x1 and x2 are equal, or finite and within atol + rtol |x2| of each other."""
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
    """Return log2(2^x1 + 2^x2); `scale` is the library's rounded log(2)."""
    sum_ = xp.logaddexp(xp.multiply(x1, scale), xp.multiply(x2, scale))
    return xp.divide(sum_, scale)


def entr(x: Tensor) -> Tensor:
    """Return -x log(x): zero at zero, where its slope is inf, and -inf below."""
    is_zero, is_infinite = xp.equal(x, 0), xp.equal(x, math.inf)
    # Below 0 its derivative is NaN in all libraries, as that of the logarithm is.
    inside = xp.where(is_zero | is_infinite, 1.0, x)
    inner = xp.where(xp.less(x, 0), -math.inf, -xp.multiply(inside, xp.log(inside)))
    # At the edges functions of the same value and slope, where x / x would be NaN.
    at_zero = xp.where(is_zero, x, 1.0) ** 0.9375  # of -0.0, too
    at_infinity = -xp.square(xp.where(is_infinite, x, 1.0))
    return xp.where(is_zero, at_zero, xp.where(is_infinite, at_infinity, inner))


def digamma(x: Tensor) -> Tensor:
    # The op gives another value at its pole at zero; XLA and TensorFlow give NaN.
    return xp.where(xp.equal(x, 0), math.nan, xp.digamma(x))


def polygamma(n: Any, x: Tensor, even_at_poles: float = -math.inf) -> Tensor:
    """Return the n-th derivative of digamma; below zero by reflection, as the libraries do.

    Args:
        even_at_poles: the value for even n at zero and the negative integers.
    """
    order = int(n)
    if order != n:
        raise TypeError(f"polygamma of order {n}")
    if not order:
        return xp.digamma(x)
    is_negative, is_pole = xp.less(x, 0), xp.less_equal(x, 0) & xp.equal(x, xp.floor(x))
    reflected = xp.polygamma(order, xp.where(is_pole, 1.0, xp.where(is_negative, 1.0 - x, x)))
    is_left = is_negative & ~is_pole
    distance = xp.where(is_left, x - xp.round(x), 0.5)  # from the nearest pole, exactly
    cosine = xp.sin(math.pi * (0.5 - xp.abs(distance)))  # 0 between two poles
    slope = _slope_of_cotangent(order, cosine / xp.sin(math.pi * distance))
    value = xp.where(is_left, (-1) ** order * reflected - math.pi ** (order + 1) * slope, reflected)
    # A pole whose slope is the next derivative's pole; a constant would have the slope 0. torch's
    # first derivative is NaN at -inf.
    is_far = xp.equal(x, -math.inf)
    pole = (-1.0) ** (order + 1) / xp.where(is_pole & ~is_far, x - xp.round(x), 1.0)
    if order % 2 == 0:
        pole = pole + (0.0 if even_at_poles == -math.inf else even_at_poles)
    limit = math.inf if order % 2 else even_at_poles
    if order == 1 and even_at_poles == -math.inf:
        limit = math.nan
    return xp.where(is_far, limit, xp.where(is_pole, pole, value))


def _slope_of_cotangent(order: int, c: Tensor) -> Tensor:
    # The derivative of this order of cot, a polynomial in c = cot that is even or odd, so Horner's
    # scheme runs in c^2.
    factors = [0, 1]  # of c^0, c^1: the derivative of c^k is -k (c^(k - 1) + c^(k + 1))
    for _ in range(order):
        derivative = [0] * (len(factors) + 1)
        for k, factor in enumerate(factors[1:], 1):
            derivative[k - 1] -= k * factor
            derivative[k + 1] -= k * factor
        factors = derivative
    is_odd = (order + 1) % 2
    value: Any = float(factors[-1])
    for factor in reversed(factors[is_odd:-1:2]):
        value = value * (c * c) + float(factor)
    return value * c if is_odd else value


def rel_entr(x: Tensor, y: Tensor) -> Tensor:
    """Return x log(x / y): 0 if x is 0 and y is not negative, else infinite unless x, y > 0."""
    inside = xp.greater(x, 0) & xp.greater(y, 0)
    safe_x, safe_y = xp.where(inside, x, 1.0), xp.where(inside, y, 1.0)
    at_zero = xp.equal(x, 0) & xp.greater_equal(y, 0)
    outside = xp.where(at_zero, 0.0, xp.where(xp.isnan(xp.add(x, y)), math.nan, math.inf))
    return xp.where(inside, xp.multiply(safe_x, xp.log(xp.divide(safe_x, safe_y))), outside)


SHIFTS = np.arange(7, -1, -1)  # of the bits of a byte, the highest first


def packbits(a: Tensor, axis: int | None = None, bitorder: str = "big") -> Tensor:
    """Pack groups of eight truth values into bytes; the last byte is padded with 0."""
    rows, axis = _rows(a, axis)
    length = tuple(rows.shape)[-1]
    bits = cast(xp.not_equal(rows, 0), INT32)
    bits = xp.pad(bits, ((0, 0),) * (rows.ndim - 1) + ((0, -length % 8),))
    octets = xp.reshape(bits, (*tuple(rows.shape)[:-1], -(-length // 8), 8))
    return xp.moveaxis(cast(xp.sum(octets * (1 << _shifts(bitorder)), -1), "uint8"), -1, axis)


def unpackbits(
    a: Tensor, axis: int | None = None, count: int | None = None, bitorder: str = "big"
) -> Tensor:
    """Return the bits of bytes, 0 or 1: `count` of them, or all but the last -`count`."""
    if isinstance(a, Value) and a.node.type.dtype != "uint8":
        raise TypeError(f"it unpacks uint8, not {a.node.type.dtype}")
    rows, axis = _rows(a, axis)
    shape = tuple(rows.shape)
    wide = cast(xp.expand_dims(rows, axis=-1), INT32)
    shifted = apply(ops.BITWISE_RIGHT_SHIFT, wide, _shifts(bitorder))
    bits = xp.reshape(apply(ops.BITWISE_AND, shifted, 1), (*shape[:-1], shape[-1] * 8))
    if count is not None:
        missing = count - (0 if count < 0 else shape[-1] * 8)
        bits = xp.pad(bits, ((0, 0),) * (len(shape) - 1) + ((0, missing),)) if missing > 0 else bits
        bits = bits[..., :count]
    return xp.moveaxis(cast(bits, "uint8"), -1, axis)


def _rows(a: Tensor, axis: int | None) -> tuple[Tensor, int]:
    # Also returns where the axis belongs; without an axis the tensor is flattened.
    return (xp.reshape(a, -1), -1) if axis is None else (xp.moveaxis(a, axis, -1), axis)


def _shifts(bitorder: str) -> Any:
    if bitorder not in ("big", "little"):
        raise TypeError(f"a bit order of {bitorder!r}")
    return SHIFTS if bitorder == "big" else SHIFTS[::-1].copy()


def logit(x: Tensor, eps: float | None = None) -> Tensor:
    # torch limits x to [eps, 1 - eps] first if eps is given.
    if eps is None:
        return xp.logit(x)
    limited = xp.clip(x, eps, 1.0 - eps)
    outside = xp.not_equal(x, limited) & ~xp.isnan(x)  # where no gradient meets an infinite slope
    return xp.where(
        outside, xp.logit(xp.stop_gradient(limited)), xp.logit(xp.where(outside, 0.5, x))
    )


def is_whole(x: Any) -> bool:
    if isinstance(x, Value):
        return not is_float(x.node.type)
    return isinstance(x, int) or "int" in str(getattr(x, "dtype", ""))


def quotient(x: Tensor, other: Any, floor_divide: Any = xp.floor_divide) -> Tensor:
    """Return the quotient of integers, rounded towards zero."""
    floored = floor_divide(x, other)  # abs() would overflow for the least integer
    is_off = xp.logical_and(xp.less(floored, 0), xp.not_equal(floored * other, x))
    return xp.where(is_off, floored + 1, floored)


def nan_to_num(x: Tensor, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Tensor:
    if is_whole(x):
        return copy_of(x)
    return xp.nan_to_num(x, 0.0 if nan is None else nan, posinf, neginf)


def hard_shrink(x: Tensor, lambd: Any = 0.5) -> Tensor:
    # Libraries compare a 16-bit x with lambd rounded to 16 bits; the op compares the exact number,
    # so it serves only a lambd that 16 bits hold.
    if is_short(lambd):
        return xp.hard_shrink(x, lambd)
    return xp.where((x >= -lambd) & (x <= lambd), 0.0, x)


def is_above(x: Tensor, number: Any) -> Tensor:
    """Return where x > number, the number not rounded to 16 bits before the comparison."""
    if is_short(number) or isinstance(number, Value):
        return x > number
    return xp.greater(xp.threshold(x, number, -math.inf), -math.inf)


def is_short(number: Any) -> bool:
    """Return whether float16 and bfloat16 both hold a number exactly: it has 8 significant bits."""
    if type(number) not in (int, float) or not (number == 0 or 2**-14 <= abs(number) < 2**15):
        return False
    return math.frexp(number)[0] * 256 % 1 == 0
