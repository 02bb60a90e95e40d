"""Elementwise functions that no activation and no rule of the library has: cube roots, remainders,
distances, logarithms, inverse trigonometric and hyperbolic functions, bits of integers, special
functions.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from ...core.ir.op import Op, count, elementwise, number, number_or_none
from ...core.ops.arithmetic import AND, OF_NUMBERS, OR, binary, question, to_chosen
from ...core.ops.numerics import Array, wide, widened
from ...core.ops.properties import (
    ABOVE_ONE,
    ABOVE_ZERO,
    BETWEEN_ZERO_AND_ONE,
    WITHIN_ONE,
)
from ...core.ops.table import Cotangents, composite, function, op, ufunc, zero
from . import special_functions
from .special_functions import late_from_scipy

# --- roots, signs, the larger and the smaller -----------------------------------------------------


@widened
def cube_root(x: Array) -> Array:
    # np.cbrt and a step of Newton's method: without AVX-512 it is the C library's cbrt, which is
    # off by 1.5 eps.
    y = np.cbrt(x)
    with np.errstate(all="ignore"):
        newton = y - (y - x / (y * y)) / 3
    return np.where((y != 0) & np.isfinite(y), newton, y).astype(x.dtype)


def cbrt(xp: Any, x: Any) -> Any:
    size = xp.abs(x)
    root = xp.pow(size, 1 / 3)
    newton = root - (root - size / (root * root)) / 3.0  # Newton: pow alone knows 1/3 to eps only
    return xp.copysign(xp.where((size > 0) & (size < math.inf), newton, size), x)


def fmax_vjp(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    return to_chosen(xp, ct, a, b, is_first=xp.greater(a, b) | xp.isnan(b))


def fmin_vjp(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    return to_chosen(xp, ct, a, b, is_first=xp.less(a, b) | xp.isnan(b))


def fmax(xp: Any, a: Any, b: Any) -> Any:
    return xp.where(xp.isnan(a), b, xp.where(xp.isnan(b), a, xp.maximum(a, b)))


def fmin(xp: Any, a: Any, b: Any) -> Any:
    return xp.where(xp.isnan(a), b, xp.where(xp.isnan(b), a, xp.minimum(a, b)))


def copysign(xp: Any, a: Any, b: Any) -> Any:
    size = xp.abs(a)
    return xp.where(xp.signbit(b), -size, size)


CBRT = function(
    "cbrt", cube_root, "ct / (3.0 * y * y)", "The cube root.", domain=ABOVE_ZERO, made_of=cbrt
)
FMAX = binary(
    wide(np.fmax),
    fmax_vjp,
    "The larger; a number rather than NaN.",
    on_bools=OR,
    made_of=fmax,
)
FMIN = binary(
    wide(np.fmin),
    fmin_vjp,
    "The smaller; a number rather than NaN.",
    on_bools=AND,
    made_of=fmin,
)
# The slope is the product of both signs; by sign bits, because sign(0) is 0.
COPYSIGN = binary(
    wide(np.copysign),
    "ct * xp.where(xp.logical_xor(xp.signbit(a), xp.signbit(b)), -1.0, 1.0), None",
    "|a| with the sign of b.",
    made_of=copysign,
)
# The distance to the next number is constant between powers of two.
NEXTAFTER = ufunc(
    np.nextafter,
    "ct, None",
    "The next number of a's dtype after a towards b; its slope in a is 1.",
    "a b",
)
SIGNBIT = question("signbit", np.signbit, "The sign bit is set: x is below zero, or -0.")

# --- remainders, and what is no number ------------------------------------------------------------


def frac(xp: Any, x: Any) -> Any:
    return x - xp.trunc(x)


def nan_to_num(x: Array, *, nan: float, posinf: float | None, neginf: float | None) -> Array:
    x = np.asarray(x)
    # np.nan_to_num has no bfloat16, and in 16 bits the largest float32 is an infinity again.
    largest = np.nextafter(x.dtype.type(np.inf), x.dtype.type(0))
    at_inf = largest if posinf is None else x.dtype.type(posinf)
    at_minus_inf = -largest if neginf is None else x.dtype.type(neginf)
    finite = np.where(x == np.inf, at_inf, np.where(x == -np.inf, at_minus_inf, x))
    return np.where(np.isnan(x), x.dtype.type(nan), finite).astype(x.dtype)


FRAC = composite(frac, None, "x - trunc(x).")
# round, because (a - y) / b is an integer but for rounding.
FMOD = binary(
    wide(np.fmod),
    "ct, -ct * xp.round((a - y) / b)",
    "a - b trunc(a / b), with the sign of a.",
    on_bools=OF_NUMBERS,
)
NAN_TO_NUM = function(
    "nan_to_num",
    nan_to_num,
    "ct * xp.isfinite(x)",
    "x with NaN and infinities replaced; None: by the largest number of the dtype.",
    nan=number(0.0, 7.0),
    posinf=number_or_none(1.0),
    neginf=number_or_none(-2.0),
    composed=True,
    on_bools="numbers",
)

# --- geometry -------------------------------------------------------------------------------------


def hypot_vjp(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    length = xp.where(xp.equal(y, 0), 1.0, y)
    return ct * (a / length), ct * (b / length)


def atan2_vjp(xp: Any, ct: Any, y: Any, a: Any, b: Any) -> Cotangents:
    distance = xp.hypot(a, b)  # its square may overflow
    length = xp.where(xp.equal(distance, 0), 1.0, distance)
    return ct * (b / length / length), -ct * (a / length / length)


def hypot(xp: Any, a: Any, b: Any) -> Any:
    abs_a, abs_b = xp.abs(a), xp.abs(b)
    large, small = xp.maximum(abs_a, abs_b), xp.minimum(abs_a, abs_b)
    ratio = small / xp.where(large > 0, large, 1.0)
    length = large * xp.sqrt(1.0 + ratio * ratio)
    # The ratio of two infinities is NaN.
    return xp.where(xp.isinf(a) | xp.isinf(b), math.inf, length)


HYPOT = ufunc(wide(np.hypot), hypot_vjp, "sqrt(a^2 + b^2), without overflow.", "a b", made_of=hypot)
ATAN2 = function(
    "atan2", wide(np.arctan2), atan2_vjp, "The angle of the point (b, a), in radians.", "a b"
)

# --- logarithms, inverse trigonometric and hyperbolic functions -----------------------------------


def logaddexp(xp: Any, a: Any, b: Any) -> Any:
    # Equal operands have no gap, two infinities neither, whose difference is NaN.
    gap = xp.where(xp.equal(a, b), 0.0, -xp.abs(a - b))
    return xp.maximum(a, b) + xp.log1p(xp.exp(gap))


EXP2 = ufunc(wide(np.exp2), "ct * (y * math.log(2))", "2 to the power x.")
LOG2 = ufunc(
    wide(np.log2), "ct / x * (1 / math.log(2))", "The logarithm to base 2.", domain=ABOVE_ZERO
)
LOG10 = ufunc(
    wide(np.log10), "ct / x * (1 / math.log(10))", "The logarithm to base 10.", domain=ABOVE_ZERO
)
LOGADDEXP = ufunc(
    wide(np.logaddexp),
    "ct * xp.sigmoid(a - b), ct * xp.sigmoid(b - a)",
    "log(exp(a) + exp(b)), without overflow.",
    "a b",
    made_of=logaddexp,
)
TAN = ufunc(wide(np.tan), "ct * (1.0 + y * y)", "The tangent; x in radians.", domain=WITHIN_ONE)
# By factors: 1 - x * x loses digits near 1.
ASIN = function(
    "asin",
    wide(np.arcsin),
    "ct * xp.rsqrt((1.0 - x) * (1.0 + x))",
    "The inverse sine, in radians.",
    domain=WITHIN_ONE,
)
ACOS = function(
    "acos",
    wide(np.arccos),
    "-ct * xp.rsqrt((1.0 - x) * (1.0 + x))",
    "The inverse cosine, in radians.",
    domain=WITHIN_ONE,
)
# x * x may overflow.
ASINH = function("asinh", wide(np.arcsinh), "ct / xp.hypot(x, 1.0)", "The inverse hyperbolic sine.")
# Two roots: x * x - 1 loses digits near 1 and overflows far from it.
ACOSH = function(
    "acosh",
    wide(np.arccosh),
    "ct / (xp.sqrt(x - 1.0) * xp.sqrt(x + 1.0))",
    "The inverse hyperbolic cosine.",
    domain=ABOVE_ONE,
)
ATANH = function(
    "atanh",
    wide(np.arctanh),
    "ct / ((1.0 - x) * (1.0 + x))",
    "The inverse hyperbolic tangent.",
    domain=WITHIN_ONE,
)

# --- bits of integers -----------------------------------------------------------------------------


def bitwise(name: str, numpy: Any, on_numbers: Any, doc: str, **fields: Any) -> Op:
    """Declare an elementwise op on int32; a Python symbol among them has another op for bools."""
    fields = {"coerce": "int", "on_numbers": on_numbers, "composed": "symbol" in fields, **fields}
    args = "x" if numpy.nin == 1 else "a b"
    return op(name, args, numpy=numpy, vjp=zero, doc=doc, result=elementwise, **fields)


def left_shift(a: int, b: int) -> int:
    # Python's integers shift by any amount; C leaves 32 and more undefined.
    return a << b if 0 <= b < 32 else 0


def right_shift(a: int, b: int) -> int:
    # A shift by 31 already leaves only the sign.
    return a >> (b if 0 <= b < 32 else 31)


BITWISE_AND = bitwise(
    "bitwise_and", np.bitwise_and, operator.and_, "The bits set in both.", symbol="&"
)
BITWISE_OR = bitwise(
    "bitwise_or", np.bitwise_or, operator.or_, "The bits set in at least one.", symbol="|"
)
BITWISE_XOR = bitwise(
    "bitwise_xor", np.bitwise_xor, operator.xor, "The bits set in exactly one.", symbol="^"
)
BITWISE_INVERT = bitwise(
    "bitwise_invert", np.bitwise_not, operator.invert, "The bits not set.", symbol="~"
)
BITWISE_LEFT_SHIFT = bitwise(
    "bitwise_left_shift",
    np.left_shift,
    left_shift,
    "a times 2 to the b, without what overflows.",
)
BITWISE_RIGHT_SHIFT = bitwise(
    "bitwise_right_shift", np.right_shift, right_shift, "a over 2 to the b, rounded down."
)

# --- inverse error functions, the normal distribution, gamma and Bessel functions, sinc -----------
ROOT_TAU = math.sqrt(2 * math.pi)
MILLS_FROM = 8.0  # beyond this |x|, the inverse Mills ratio comes from a continued fraction


def ours(name: str, vjp: Any, doc: str, **fields: Any) -> Op:
    """Declare an op whose NumPy function is that of its name in `special_functions`."""
    return function(name, getattr(special_functions, name), vjp, doc, **fields)


def log_ndtr_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    # phi(x) / Phi(x); in the left tail, where that quotient cancels, by `inverse_mills`.
    tail = inverse_mills(xp.maximum(-x, MILLS_FROM))
    x_near = xp.maximum(x, -MILLS_FROM)
    quotient = xp.exp(-0.5 * x_near * x_near - xp.log_ndtr(x_near)) * (1 / ROOT_TAU)
    return (ct * xp.where(xp.less(x, -MILLS_FROM), tail, quotient),)


def ndtr(xp: Any, x: Any) -> Any:
    return 0.5 * xp.erfc(-math.sqrt(0.5) * x)


def log_ndtr(xp: Any, x: Any) -> Any:
    # Three ranges, each by a form that does not cancel there.
    middle = xp.log(0.5 * xp.erfc(-math.sqrt(0.5) * xp.clip(x, -MILLS_FROM, 1.0)))
    right = xp.log1p(-0.5 * xp.erfc(math.sqrt(0.5) * xp.maximum(x, 1.0)))
    mills = inverse_mills(xp.maximum(-x, MILLS_FROM))
    left = -0.5 * x * x - xp.log(mills * ROOT_TAU)
    return xp.where(x < -MILLS_FROM, left, xp.where(x > 1.0, right, middle))


def inverse_mills(t: Any) -> Any:
    """Return phi(t) / Phi(-t) from MILLS_FROM on, by Laplace's continued fraction."""
    fraction = t
    # 14 levels reach float64 from MILLS_FROM on.
    for k in range(14, 0, -1):
        fraction = t + k / fraction
    return fraction


ERFINV = ours(
    "erfinv",
    "ct * (math.sqrt(math.pi) / 2 * xp.exp(y * y))",
    "The inverse of erf.",
    domain=WITHIN_ONE,
)
NDTR = ours(
    "ndtr",
    "ct * (xp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi)))",
    "The normal distribution function Phi.",
    made_of=ndtr,
)
NDTRI = ours(
    "ndtri",
    "ct * (math.sqrt(2 * math.pi) * xp.exp(0.5 * y * y))",
    "The inverse of ndtr.",
    domain=BETWEEN_ZERO_AND_ONE,
)
LOG_NDTR = ours("log_ndtr", log_ndtr_vjp, "log(ndtr(x)).", made_of=log_ndtr)


def digamma_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    # Trigamma; below zero by reflection: (pi / sin(pi x))^2 - trigamma(1 - x).
    is_below = xp.less(x, 0)
    trigamma = xp.polygamma(1, xp.where(is_below, 1.0 - x, x))
    distance = xp.where(is_below, x - xp.round(x), 0.5)  # from the nearest pole, exactly
    reflection_term = xp.square(math.pi / xp.sin(math.pi * distance))
    return (ct * xp.where(is_below, reflection_term - trigamma, trigamma),)


LGAMMA = ours("lgamma", "ct * xp.digamma(x)", "log |gamma(x)|.")
DIGAMMA = ours("digamma", digamma_vjp, "The derivative of lgamma; NaN at its poles but zero.")
POLYGAMMA = ours(
    "polygamma",
    "ct * xp.polygamma(n + 1, x)",
    "The n-th derivative of digamma, n at least 1; NaN below zero.",
    n=count(1, 2),
    composed=True,
    domain=ABOVE_ZERO,
)


def i1e_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    # i0e(x) - i1e(x) (sign(x) + 1 / x), which is 1/2 - |x| + 15/16 x^2 near zero.
    size = xp.abs(x)
    is_near = xp.less(size, 1e-7)  # before the quotient meets subnormal numbers
    slope = xp.i0e(x) - xp.sign(x) * y - y / xp.where(is_near, 1.0, x)
    return (ct * xp.where(is_near, 0.5 - size + 0.9375 * size * size, slope),)


I0E = ufunc(
    late_from_scipy("i0e"),
    "ct * (xp.i1e(x) - xp.sign(x) * y)",
    "exp(-|x|) I0(x), the Bessel function scaled.",
)
I1E = ufunc(late_from_scipy("i1e"), i1e_vjp, "exp(-|x|) I1(x), the Bessel function scaled.")

# Below SINC_NEAR the quotient cancels; SINC_TERMS terms of the series give float64 accuracy there.
SINC_NEAR, SINC_TERMS = 0.3, 9


def sinc(xp: Any, x: Any) -> Any:
    is_zero = xp.equal(x, 0)
    angle = math.pi * xp.where(is_zero, 1.0, x)
    return xp.where(is_zero, 1.0, xp.sin(angle) / angle)


def sinc_vjp(xp: Any, ct: Any, y: Any, x: Any) -> Cotangents:
    # (cos(pi x) - sinc(x)) / x, near zero by its series.
    is_near = xp.less(xp.abs(x), SINC_NEAR)
    near = xp.where(is_near, x, 0.0)
    square, series = near * near, 0.0
    for k in range(SINC_TERMS, 0, -1):
        term = (-1) ** k * 2 * k * math.pi ** (2 * k) / math.factorial(2 * k + 1)
        series = term + square * series
    far = xp.where(is_near, 1.0, x)
    return (ct * xp.where(is_near, near * series, (xp.cos(math.pi * far) - xp.sinc(far)) / far),)


SINC = composite(sinc, sinc_vjp, "sin(pi x) / (pi x), and 1 at zero.")
