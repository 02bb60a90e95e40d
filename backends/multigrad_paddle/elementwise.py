"""Paddle's rows of the elementwise family: op to callable."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import paddle

from multigrad.backend import Op, ops, random, rows_of

from .widening import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT64,
    Tensor,
    aligned,
    constant,
    differ,
    dtype_of,
    equal,
    factor,
    is_float,
    is_half,
    is_tensor,
    rounded,
    wide,
    widened,
)

ROOT_HALF = math.sqrt(0.5)
LARGEST, MOST_IN_FLOAT8 = ops.selection.LARGEST, ops.selection.MOST_IN_FLOAT8
MILLS_FROM, inverse_mills = ops.special.MILLS_FROM, ops.special.inverse_mills


@widened
def add(a: Any, b: Any) -> Tensor:
    return a + b


@widened
def sub(a: Any, b: Any) -> Tensor:
    return a - b


@widened
def mul(a: Any, b: Any) -> Tensor:
    # Paddle (3.3) adds 0.0 to what it multiplies by a number, and nothing is left of -0.0.
    return paddle.multiply(a, factor(b, a)) if is_tensor(a) else paddle.multiply(b, factor(a, b))


@widened
def neg(x: Tensor) -> Tensor:
    return paddle.multiply(x, factor(-1, x))


@widened
def div(a: Any, b: Any) -> Tensor:
    return a / b


@aligned
def power(a: Tensor, b: Tensor) -> Tensor:
    result = paddle.pow(a, b)
    if a.dtype != FLOAT64:
        return result
    # paddle.pow (3.3): infinite from 2 eps below the largest float64.
    root = paddle.pow(paddle.abs(a), 0.5 * b)
    return paddle.where(paddle.isinf(result) & (result > 0), root * root, result)


def pow(a: Any, b: Any) -> Tensor:
    if isinstance(b, int | float) and is_float(a) and b == 2:
        return mul(a, a)
    if isinstance(b, int | float) and b == 1:
        return a
    return power(a, b)  # paddle 3.3 rounds a number in the exponent to float32


def logical(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Take bools of Python too."""

    def call(*values: Any) -> Tensor:
        return function(*(v if is_tensor(v) else constant(v, BOOL) for v in values))

    return call


def bitwise(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Take ints of Python too."""

    def call(*values: Any) -> Tensor:
        dtype = dtype_of(values)
        return function(*(constant(v, dtype) for v in values))

    return call


def shifted(function: Callable[..., Tensor], a: Tensor, b: Tensor, beyond: Tensor) -> Tensor:
    """Shift by what the dtype has bits for; what is beyond is left to the processor otherwise."""
    bits = 64 if a.dtype == INT64 else 32
    inside = (b >= 0) & (b < bits)
    result = function(a, paddle.where(inside, b, paddle.zeros_like(b)))
    return paddle.where(inside, result, beyond)


@bitwise
def bitwise_left_shift(a: Tensor, b: Tensor) -> Tensor:
    return shifted(paddle.bitwise_left_shift, a, b, paddle.zeros_like(a))


@bitwise
def bitwise_right_shift(a: Tensor, b: Tensor) -> Tensor:
    signs = paddle.where(a < 0, paddle.full_like(a, -1), paddle.zeros_like(a))
    return shifted(paddle.bitwise_right_shift, a, b, signs)


@widened
def clip(x: Any, min: Any, max: Any) -> Tensor:
    return minimum(maximum(x, min), max)


def where(condition: Any, a: Any, b: Any) -> Tensor:
    if not is_tensor(condition):  # a comparison of params
        condition = constant(condition, BOOL)
    dtype = dtype_of(tuple(v for v in (a, b) if is_tensor(v)) or (constant(0.0, FLOAT32),))
    chosen = paddle.where(condition, *(wide(constant(v, dtype)) for v in (a, b)))
    return rounded(chosen, dtype)


def cast(x: Tensor, *, dtype: Any) -> Tensor:
    if not is_float(x) or dtype in (FLOAT16, BFLOAT16, FLOAT32, FLOAT64):
        return rounded(x, dtype)
    if dtype == BOOL:
        return differ(wide(x), 0)
    if dtype == paddle.float8_e4m3fn:
        near = wide(x)
        out = paddle.abs(near) > MOST_IN_FLOAT8
        return rounded(where(out, math.nan, near).astype(FLOAT32), dtype)
    if dtype == paddle.float8_e5m2:
        return rounded(x.astype(FLOAT32), dtype)
    # What is out of range is left to the processor otherwise.
    low, high = (-LARGEST, LARGEST) if dtype == INT64 else bounds(dtype)
    near = x.astype(FLOAT64)
    return rounded(clip(where(paddle.isnan(near), 0.0, near), low, high), dtype)


def bounds(dtype: Any) -> tuple[float, float]:
    info = paddle.iinfo(dtype)
    return float(info.min), float(info.max)


def full_like(x: Tensor, value: Any, *, dtype: Any = None) -> Tensor:
    return paddle.expand(constant(value, dtype or x.dtype), x.shape)


def trunc(x: Tensor) -> Tensor:
    return paddle.trunc(x)


def sqrt(x: Tensor) -> Tensor:
    # paddle.sqrt (3.3): NaN at infinity, and 0 for subnormal numbers.
    near = x.astype(FLOAT64)
    finite = equal(near, near) & (near < math.inf)
    return rounded(paddle.where(finite, paddle.sqrt(where(finite, near, 1.0)), near), x.dtype)


def rsqrt(x: Tensor) -> Tensor:
    return rounded((1.0 / sqrt(x.astype(FLOAT64))), x.dtype)


@widened
def frac(x: Tensor) -> Tensor:
    return x - paddle.trunc(x)


@widened
def signbit(x: Tensor) -> Tensor:
    kind = paddle.int64 if x.dtype == FLOAT64 else paddle.int32
    return x.view(kind) < 0 if x.size else x < 0


@aligned
def copysign(a: Tensor, b: Tensor) -> Tensor:
    size = paddle.abs(a)
    return paddle.where(signbit(b), -size, size)


@widened
def cbrt(x: Tensor) -> Tensor:
    size = paddle.abs(x)
    inside = (size > 0) & (size < math.inf)
    safe = where(inside, size, 1.0)
    root = power(safe, 1 / 3)
    refined = root - (root - safe / (root * root)) / 3  # Newton: pow alone knows 1/3 to eps only
    return copysign(paddle.where(inside, refined, size), x)


@aligned
def hypot(a: Tensor, b: Tensor) -> Tensor:
    large, small = (f(paddle.abs(a), paddle.abs(b)) for f in (paddle.maximum, paddle.minimum))
    ratio = where(large > 0, small / where(large > 0, large, 1.0), 0.0)
    length = large * paddle.sqrt(1.0 + ratio * ratio)
    return where(paddle.isinf(a) | paddle.isinf(b), math.inf, length)


def of_integers(function: Callable[..., Tensor], a: Tensor, b: Tensor) -> Tensor:
    """A quotient or a remainder of integers: 0 at b = 0."""
    none = equal(b, 0)
    return where(none, 0, function(a, where(none, 1, b)))


@aligned
def fmod(a: Tensor, b: Tensor) -> Tensor:
    if not is_float(b):
        rest = of_integers(paddle.remainder, a, b)
        return where(differ(rest, 0) & ((rest < 0) != (a < 0)), rest - b, rest)
    rest = paddle.remainder(paddle.abs(a), paddle.abs(b))
    rest = where(paddle.isinf(b) & paddle.isfinite(a), paddle.abs(a), rest)
    return copysign(rest, a)


@aligned
def remainder(a: Tensor, b: Tensor) -> Tensor:
    if not is_float(b):
        return of_integers(paddle.remainder, a, b)
    rest = fmod(a, b)
    moved = paddle.where(differ(rest, 0) & ((rest < 0) != (b < 0)), rest + b, rest)
    return paddle.where(equal(moved, 0), copysign(moved, b), moved)


@aligned
def floor_divide(a: Tensor, b: Tensor) -> Tensor:
    """As NumPy and Python: a / b may round up to the next integer, a - fmod(a, b) does not."""
    if not is_float(b):
        return of_integers(paddle.floor_divide, a, b)
    rest = fmod(a, b)
    ratio = (a - rest) / b
    ratio = paddle.where(differ(rest, 0) & ((rest < 0) != (b < 0)), ratio - 1.0, ratio)
    whole = paddle.floor(ratio)
    whole = paddle.where(ratio - whole > 0.5, whole + 1.0, whole)
    return paddle.where(equal(b, 0), a / b, whole)


@aligned
def fmax(a: Tensor, b: Tensor) -> Tensor:
    larger = paddle.where(paddle.isnan(b), a, paddle.maximum(a, b))
    return paddle.where(paddle.isnan(a), b, larger)


@aligned
def fmin(a: Tensor, b: Tensor) -> Tensor:
    smaller = paddle.where(paddle.isnan(b), a, paddle.minimum(a, b))
    return paddle.where(paddle.isnan(a), b, smaller)


@widened
def exp(x: Tensor) -> Tensor:
    # paddle.exp (3.3, CPU) ends at 3e-39 (float64: 6e-309), for minus infinity too.
    least = -708.0 if x.dtype == FLOAT64 else -87.0
    root = paddle.exp(0.5 * paddle.minimum(x, paddle.full_like(x, least)))
    return paddle.where(x < least, root * root, paddle.exp(x))


@widened
def exp2(x: Tensor) -> Tensor:
    return power(2.0, x)


@aligned
def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    gap = where(equal(a, b), 0.0, -paddle.abs(a - b))
    return paddle.maximum(a, b) + paddle.log1p(exp(gap))


def times_log(a: Tensor, b: Tensor, log: Callable[[Tensor], Tensor]) -> Tensor:
    """a log(b), which is 0 where a is, unless b is NaN."""
    none = equal(a, 0) & ~paddle.isnan(b)
    return where(none, 0.0, a * log(where(none, 1.0, b)))


@aligned
def xlogy(a: Tensor, b: Tensor) -> Tensor:
    return times_log(a, b, paddle.log)


@aligned
def xlog1py(a: Tensor, b: Tensor) -> Tensor:
    return times_log(a, b, paddle.log1p)


@widened
def sinc(x: Tensor) -> Tensor:
    angle = math.pi * where(equal(x, 0), 1.0, x)
    return where(equal(x, 0), 1.0, paddle.sin(angle) / angle)


@widened
def deg2rad(x: Tensor) -> Tensor:
    return x * (math.pi / 180)


@widened
def rad2deg(x: Tensor) -> Tensor:
    return x * (180 / math.pi)


class Arithmetic:
    """What `multigrad.random` computes with."""

    log, log1p, sqrt, where = paddle.log, paddle.log1p, sqrt, where


def erfinv(x: Tensor) -> Tensor:
    near = x.astype(FLOAT64)
    inside = random.erfinv(clip(near, -1.0 + 2.0**-53, 1.0 - 2.0**-53), Arithmetic, True)
    outside = where(
        equal(near, 1.0),
        constant(math.inf, FLOAT64),
        where(equal(near, -1.0), constant(-math.inf, FLOAT64), math.nan),
    )
    return rounded(paddle.where(paddle.abs(near) < 1.0, inside, outside), x.dtype)


def erfc(x: Tensor) -> Tensor:
    """1 - erf(x); far right by W. J. Cody's rational functions, where the difference cancels."""
    near = x.astype(FLOAT64)
    right = near > 0.46875
    z = clip(where(right, near, 1.0), 0.46875, 30.0)
    middle, far = clip(z, 0.46875, 4.0), maximum(z, 4.0)
    top, bottom = ERFC_MIDDLE
    tail = polynomial(top, middle) / polynomial(bottom, middle)
    inverse = 1.0 / (far * far)
    top, bottom = ERFC_FAR
    rest = inverse * polynomial(top, inverse) / polynomial(bottom, inverse)
    tail = paddle.where(z > 4.0, (1 / math.sqrt(math.pi) - rest) / far, tail)
    coarse = paddle.floor(z.detach() * 16.0) / 16.0
    tail = tail * exp(-coarse * coarse) * exp(-(z - coarse) * (z + coarse))
    result = paddle.where(right, tail, 1.0 - paddle.erf(where(right, 0.0, near)))
    return rounded(paddle.where(paddle.isnan(near), near, result), x.dtype)


def polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """Evaluate by Horner's scheme, highest power first."""
    total = paddle.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


# W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969).
ERFC_MIDDLE = (
    (
        2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 66.1191906371416295,
        298.635138197400131, 881.95222124176909, 1712.04761263407058, 2051.07837782607147,
        1230.33935479799725,
    ),
    (
        1.0, 15.7449261107098347, 117.693950891312499, 537.181101862009858, 1621.38957456669019,
        3290.79923573345963, 4362.61909014324716, 3439.36767414372164, 1230.33935480374942,
    ),
)  # fmt: skip
ERFC_FAR = (
    (
        1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1,
        1.25781726111229246e-1, 1.60837851487422766e-2, 6.58749161529837803e-4,
    ),
    (
        1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1,
        6.05183413124413191e-2, 2.33520497626869185e-3,
    ),
)  # fmt: skip


@widened
def ndtr(x: Tensor) -> Tensor:
    return 0.5 * erfc(-ROOT_HALF * x)


def ndtri(x: Tensor) -> Tensor:
    """By erfinv, and in the tails by Newton's method on the logarithm."""
    near = x.astype(FLOAT64)
    low = paddle.minimum(near, 1.0 - near)
    center = -math.sqrt(2) * erfinv(1.0 - 2.0 * where(low > TAIL, low, 0.5))
    inside = (low > 0) & (low <= TAIL)
    target = paddle.log(where(inside, low, TAIL))
    z = -sqrt(-2.0 * target)
    for _ in range(5):
        z = z - (log_ndtr(z) - target) / slope_of_log_ndtr(z)
    result = where(low > TAIL, center, where(inside, z, -math.inf))
    result = where((low < 0) | paddle.isnan(low), math.nan, result)
    return rounded(paddle.where(near > 0.5, -result, result), x.dtype)


TAIL = 0.02


def slope_of_log_ndtr(x: Tensor) -> Tensor:
    """phi(x) / Phi(x) below zero."""
    tail = inverse_mills(maximum(-x, MILLS_FROM))
    near = maximum(x, -MILLS_FROM)
    quotient = exp(-0.5 * near * near - log_ndtr(near)) / math.sqrt(2 * math.pi)
    return paddle.where(x < -MILLS_FROM, tail, quotient)


def log_ndtr(x: Tensor) -> Tensor:
    near = x.astype(FLOAT64)
    middle = paddle.log(0.5 * erfc(-ROOT_HALF * clip(near, -MILLS_FROM, 1.0)))
    right = paddle.log1p(-0.5 * erfc(ROOT_HALF * maximum(near, 1.0)))
    mills = inverse_mills(maximum(-near, MILLS_FROM))
    left = -0.5 * near * near - paddle.log(mills * math.sqrt(2 * math.pi))
    chosen = where(near < -MILLS_FROM, left, where(near > 1.0, right, middle))
    return rounded(chosen, x.dtype)


@widened
def digamma(x: Tensor) -> Tensor:
    """Reflected here: the kernel loses digits near its poles."""
    below = x < 0
    right = paddle.digamma(where(below, 1.0 - x, x))
    is_pole = below & equal(x, paddle.floor(x))
    apart = where(below & ~is_pole, x - paddle.round(x), 0.5)
    left = right - math.pi / paddle.tan(math.pi * apart)
    values = where(is_pole, math.nan, where(below, left, right))
    return where(equal(x, 0), -1.0 / where(equal(x, 0), x, 1.0), values)


def polygamma(x: Tensor, *, n: int) -> Tensor:
    """By recurrence to above 20 and the asymptotic series there."""
    near = x.astype(FLOAT64)
    inside = (near > 0) & (near < math.inf)
    z, total = where(inside, near, 1.0), constant(0.0, FLOAT64)
    for _ in range(24):
        step = z < 24
        total = total + where(step, power(z, -float(n + 1)), 0.0) * math.factorial(n)
        z = where(step, z + 1.0, z)
    series = math.factorial(n - 1) * power(z, -float(n))
    series = series + math.factorial(n) / 2 * power(z, -float(n + 1))
    for k, number in enumerate(BERNOULLI, 1):
        series = series + number * math.factorial(2 * k + n - 1) / math.factorial(2 * k) * power(
            z, -float(2 * k + n)
        )
    sign = (-1.0) ** (n + 1)
    outside = where(
        equal(near, 0), sign * math.inf, where(near > 0, constant(0.0, FLOAT64), math.nan)
    )
    return rounded(paddle.where(inside, sign * (total + series), outside), x.dtype)


BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)


def nan_to_num(x: Tensor, *, nan: float, posinf: float | None, neginf: float | None) -> Tensor:
    largest = float(paddle.finfo(x.dtype).max)
    above = largest if posinf is None else posinf
    below = -largest if neginf is None else neginf
    finite = where(equal(x, math.inf), above, where(equal(x, -math.inf), below, x))
    return where(paddle.isnan(x), nan, finite)


@widened
def sign(x: Tensor) -> Tensor:
    return paddle.sign(x)


def nextafter(a: Any, b: Any) -> Tensor:
    """Among the numbers of its own dtype, 16-bit ones too."""
    dtype = dtype_of((a, b))
    a, b = (constant(v, dtype) for v in (a, b))
    if not is_half(dtype):
        return paddle.nextafter(a, b)
    a, b = paddle.expand(a, result_shape(a, b)), paddle.expand(b, result_shape(a, b))
    near, goal = a.astype(FLOAT32), b.astype(FLOAT32)
    bits = a.view(paddle.int16).astype(paddle.int32)
    stepped = where((near < goal) == (near > 0), bits + 1, bits - 1)
    stepped = where(equal(near, 0), where(goal > 0, paddle.ones_like(bits), -32767), stepped)
    moved = stepped.astype(paddle.int16).view(dtype).astype(FLOAT32)
    moved = where(equal(near, goal), goal, moved)
    return rounded(where(paddle.isnan(near) | paddle.isnan(goal), near + goal, moved), dtype)


def result_shape(a: Tensor, b: Tensor) -> Any:
    return paddle.broadcast_shape(a.shape, b.shape)


def stop_gradient(x: Tensor) -> Tensor:
    return x.detach()


maximum, minimum = aligned(paddle.maximum), aligned(paddle.minimum)
OPS: dict[Op, Callable[..., Any]] = {
    **rows_of(vars()),
    ops.AND: logical(paddle.logical_and),
    ops.OR: logical(paddle.logical_or),
    ops.XOR: logical(paddle.logical_xor),
    ops.NOT: logical(paddle.logical_not),
    ops.BITWISE_AND: bitwise(paddle.bitwise_and),
    ops.BITWISE_OR: bitwise(paddle.bitwise_or),
    ops.BITWISE_XOR: bitwise(paddle.bitwise_xor),
    ops.BITWISE_INVERT: bitwise(paddle.bitwise_not),
    ops.EQ: equal,
    ops.NE: differ,
    ops.ABS: widened(paddle.abs),
    ops.SQUARE: widened(paddle.square),
    ops.RECIPROCAL: widened(paddle.reciprocal),
    ops.FLOOR: widened(paddle.floor),
    ops.CEIL: widened(paddle.ceil),
    ops.ROUND: widened(paddle.round),
    ops.TRUNC: widened(paddle.trunc),
    ops.EXPM1: widened(paddle.expm1),
    ops.LOG: widened(paddle.log),
    ops.LOG1P: widened(paddle.log1p),
    ops.LOG2: widened(paddle.log2),
    ops.LOG10: widened(paddle.log10),
    ops.SIN: widened(paddle.sin),
    ops.COS: widened(paddle.cos),
    ops.TAN: widened(paddle.tan),
    ops.ASIN: widened(paddle.asin),
    ops.ACOS: widened(paddle.acos),
    ops.ATAN: widened(paddle.atan),
    ops.ATAN2: aligned(paddle.atan2),
    ops.SINH: widened(paddle.sinh),
    ops.COSH: widened(paddle.cosh),
    ops.TANH: widened(paddle.tanh),
    ops.ASINH: widened(paddle.asinh),
    ops.ACOSH: widened(paddle.acosh),
    ops.ATANH: widened(paddle.atanh),
    ops.ERF: widened(paddle.erf),
    ops.LGAMMA: widened(paddle.lgamma),
    ops.I0E: widened(paddle.i0e),
    ops.I1E: widened(paddle.i1e),
    ops.ISNAN: widened(paddle.isnan),
    ops.ISINF: widened(paddle.isinf),
    ops.ISFINITE: widened(paddle.isfinite),
}
