"""MLX's kernels of the elementwise ops, op to callable."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from multigrad.backend import Op, ops, random, rows_of

Tensor = Any

LOG_2 = math.log(2)
# pi in three parts (Cephes). The first two have few bits, so small multiples of them are exact.
PARTS_OF_PI = (3.14159265160560607910, 1.98418714791870343106e-9, 1.14423774522196636802e-17)
LARGEST = 255 * 2.0**55  # the largest number below 2**63 in all float dtypes, as in NumPy's kernel
INTEGERS = {2: mx.int16, 4: mx.int32, 8: mx.int64}


def accumulated(x: Tensor) -> Tensor:
    """Return 16-bit floats in float32, so that a reduction rounds once."""
    return x.astype(mx.float32) if is_half(x.dtype) else x


def is_half(dtype: Any) -> bool:
    return dtype == mx.float16 or dtype == mx.bfloat16


def is_floating(x: Tensor) -> bool:
    return mx.issubdtype(x.dtype, mx.floating)


def widened(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a kernel to compute 16-bit floats in float32 and round once; numbers become arrays."""

    @functools.wraps(function)
    def call(*values: Any, **attrs: Any) -> Tensor:
        dtype = next(value.dtype for value in values if isinstance(value, mx.array))
        wide = mx.float32 if is_half(dtype) else dtype
        arrays = (as_array(value, dtype).astype(wide) for value in values)
        return function(*arrays, **attrs).astype(dtype)

    return call


def as_array(value: Any, dtype: Any) -> Tensor:
    return value.astype(dtype) if isinstance(value, mx.array) else mx.array(value, dtype)


def fitting(value: Any, dtype: Any) -> Any:
    """Return a number as an array of the dtype; MLX would look for a wider one."""
    return value if isinstance(value, mx.array) else mx.array(value, dtype)


def clip(x: Tensor, min: Any, max: Any) -> Tensor:
    return mx.minimum(mx.maximum(x, min), max)


def cast(x: Tensor, *, dtype: Any) -> Tensor:
    if is_floating(x) and mx.issubdtype(dtype, mx.integer):
        return to_integer(x, dtype)
    return x.astype(dtype)


def to_integer(x: Tensor, dtype: Any) -> Tensor:
    # Out of range numbers are clamped and NaN becomes 0; C++ leaves both to the processor.
    info, wide = mx.iinfo(dtype), accumulated(x)
    if dtype == mx.int64:
        wide = clip(wide, -LARGEST, LARGEST)
    low, high = float(info.min), float(info.max)
    # The largest integer may not be a float: it is set after the cast.
    above = wide >= high
    whole = mx.where(above | mx.isnan(wide), 0.0, mx.maximum(wide, low))
    return mx.where(above, mx.array(info.max, dtype), whole.astype(dtype))


def full_like(x: Tensor, value: Any, *, dtype: Any = None) -> Tensor:
    kind = x.dtype if dtype is None else dtype
    return mx.broadcast_to(as_array(value, kind), x.shape)


def power(a: Any, b: Any) -> Tensor:
    if isinstance(b, int | float) and b == 2:
        return mx.square(a)
    return mx.power(a, b)


def sign(x: Tensor) -> Tensor:
    return mx.where(mx.isnan(x), x, mx.sign(x)) if is_floating(x) else mx.sign(x)


def signbit(x: Tensor) -> Tensor:
    # MLX has no derivative of a view of bits; that of a sign is zero.
    return mx.stop_gradient(x).view(INTEGERS[x.dtype.size]) < 0


@widened
def copysign(a: Tensor, b: Tensor) -> Tensor:
    return mx.where(signbit(b), -mx.abs(a), mx.abs(a))


@widened
def atan2(a: Tensor, b: Tensor) -> Tensor:
    return mx.arctan2(a, b)


@widened
def fmod(a: Tensor, b: Tensor) -> Tensor:
    # The remainder of the absolute values is exact; it gets the sign of a.
    size = of_sizes(mx.abs(a), mx.abs(b))
    return mx.where(a < 0, -size, size) if not is_floating(a) else copysign(size, a)


def of_sizes(a: Tensor, b: Tensor) -> Tensor:
    if not is_floating(a):
        return of_integers(mx.remainder, a, b)
    # Without negative operands mx.remainder is C's fmod, except that it is NaN for an infinite b.
    return mx.where(mx.isinf(b) & mx.isfinite(a), a, mx.remainder(a, b))


@widened
def remainder(a: Tensor, b: Tensor) -> Tensor:
    if not is_floating(a):
        return of_integers(mx.remainder, a, b)
    rest = fmod(a, b)
    # The result has the sign of b.
    other = (rest != 0) & ((rest < 0) != (b < 0))
    return mx.where(rest == 0, copysign(rest, b), mx.where(other, rest + b, rest))


def of_integers(function: Callable[..., Tensor], a: Tensor, b: Tensor) -> Tensor:
    """Return a quotient or remainder of integers, 0 for b = 0, where the processor would raise."""
    none = b == 0
    return mx.where(none, 0, function(a, mx.where(none, 1, b)))


@widened
def floor_divide(a: Tensor, b: Tensor) -> Tensor:
    """Return the floored quotient, as Python and NumPy: a / b may round up, a - rest does not."""
    if not is_floating(a):
        return of_integers(mx.floor_divide, a, b)
    rest = fmod(a, b)
    ratio = (a - rest) / b
    ratio = mx.where((rest != 0) & ((rest < 0) != (b < 0)), ratio - 1.0, ratio)
    whole = mx.floor(ratio)
    whole = mx.where(ratio - whole > 0.5, whole + 1.0, whole)
    return mx.where(b == 0, a / b, whole)


def nextafter(a: Tensor, b: Tensor) -> Tensor:
    """Return the next number towards b, by the integers that order floats of one sign."""
    dtype = next(v.dtype for v in (a, b) if isinstance(v, mx.array))
    a, b = mx.broadcast_arrays(as_array(a, dtype), as_array(b, dtype))
    kind = INTEGERS[dtype.size]
    bits = mx.stop_gradient(a).view(kind)
    away = (b > a) == (a > 0)
    least = mx.where(signbit(b), mx.array(mx.iinfo(kind).min + 1, kind), mx.array(1, kind))
    moved = mx.where(a == 0, least, mx.where(away, bits + 1, bits - 1)).view(dtype)
    moved = mx.where(a == b, b, moved)
    return mx.where(mx.isnan(a) | mx.isnan(b), math.nan, moved)


# --- exponentials and logarithms ---------------------------------------------------------------
def exp(x: Tensor) -> Tensor:
    """Return exp(x); MLX's own is off by |x| / 3 eps in float32, and in float64 that of float32."""
    if x.dtype == mx.float64:
        size = mx.abs(x)
        root = mx.expm1(0.5 * size) + 1.0  # halved, so that tiny results are not lost
        return mx.where(x < 0, (1.0 / root) / root, mx.expm1(x) + 1.0)
    return reduced_exp(x) if x.dtype == mx.float32 else mx.exp(x)


def reduced_exp(x: Tensor) -> Tensor:
    """Return exp(x) by a multiple of log 2 and the rest."""
    inside = clip(x, -110.0, 90.0)
    # MLX has no derivative of bits; that of a step is zero. log 2 is subtracted in two parts, the
    # first of which is exact.
    whole = mx.stop_gradient(mx.round(inside * (1 / LOG_2)))
    rest = (inside - whole * 0.693359375) + whole * 2.12194440e-4
    return scaled(mx.exp(rest), mx.stop_gradient(mx.where(mx.isnan(x), 0.0, whole)))


def scaled(x: Tensor, whole: Tensor) -> Tensor:
    """Return x * 2**whole, by two factors, neither of which is out of range."""
    half = mx.floor(whole / 2)
    return x * two_to(half) * two_to(whole - half)


def two_to(whole: Tensor) -> Tensor:
    """Return 2**whole for whole numbers in float32, by setting the exponent's bits."""
    return mx.left_shift(whole.astype(mx.int32) + 127, 23).view(mx.float32)


@widened
def exp2(x: Tensor) -> Tensor:
    return mx.power(2.0, x)


def sin(x: Tensor) -> Tensor:
    if x.dtype != mx.float64:
        return mx.sin(x)
    # By the tangent of half the angle: MLX's own sin is a float32 one in float64.
    half = mx.tan(0.5 * x)
    near = 2.0 * half / (1.0 + half * half)
    far = 2.0 / (half + 1.0 / half)  # where the square may overflow
    return mx.where(mx.abs(x) < 1e-9, x, mx.where(mx.abs(half) < 1.0, near, far))


def cos(x: Tensor) -> Tensor:
    if x.dtype != mx.float64:
        return mx.cos(x)
    size = mx.abs(x)
    # By the sine of the distance to the nearest zero, subtracted in three parts of pi.
    number = mx.round((size - math.pi / 2) / math.pi)
    rest = size
    for part in PARTS_OF_PI:
        rest = rest - (number + 0.5) * part
    half = mx.tan(0.5 * size)
    odd = number - 2.0 * mx.floor(0.5 * number)
    # Beyond 1e5 the three parts have too few bits.
    far = (1.0 - half) * (1.0 + half) / (1.0 + half * half)
    return mx.where(size < 1e5, (2.0 * odd - 1.0) * sin(rest), far)


@widened
def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    apart = mx.maximum(a, b) + mx.log1p(exp(-mx.abs(a - b)))
    return mx.where(a == b, a + LOG_2, apart)


def shift(function: Callable[..., Tensor], a: Any, b: Any, emptied: Any) -> Tensor:
    dtype = next(value.dtype for value in (a, b) if isinstance(value, mx.array))
    a, b = as_array(a, dtype), as_array(b, dtype)
    bits = 8 * dtype.size
    # The processor would take the number of places modulo the number of bits.
    inside = (b >= 0) & (b < bits)
    return mx.where(inside, function(a, mx.where(inside, b, 0)), emptied)


def bitwise_left_shift(a: Tensor, b: Tensor) -> Tensor:
    return shift(mx.left_shift, a, b, 0)


def bitwise_right_shift(a: Tensor, b: Tensor) -> Tensor:
    return shift(mx.right_shift, a, b, mx.where(mx.array(a) < 0, -1, 0))


def nan_to_num(x: Tensor, *, nan: float, posinf: float | None, neginf: float | None) -> Tensor:
    above = mx.finfo(x.dtype).max if posinf is None else posinf
    below = mx.finfo(x.dtype).min if neginf is None else neginf
    finite = mx.where(x == math.inf, above, mx.where(x == -math.inf, below, x))
    return mx.where(mx.isnan(x), nan, finite)


def where(condition: Tensor, a: Any, b: Any) -> Tensor:
    return mx.where(condition, a, b)


def magnitude(x: Tensor) -> Tensor:
    # Not mx.abs: at 0 this has the derivative from above.
    return mx.where(x < 0, -x, x)


@widened
def sigmoid(x: Tensor) -> Tensor:
    # MLX's own sigmoid is off by 15 eps, and in float64 that of float32.
    small = exp(-magnitude(x))
    return mx.where(x < 0, small, 1.0) / (1.0 + small)


@widened
def softplus(x: Tensor) -> Tensor:
    return mx.where(x < 0, 0.0, x) + mx.log1p(exp(-magnitude(x)))


def log_sigmoid(x: Tensor) -> Tensor:
    return -softplus(-x)


def heaviside(x: Tensor) -> Tensor:
    return (x > 0).astype(x.dtype)


def relu(x: Tensor) -> Tensor:
    return mx.maximum(x, 0.0)


@widened
def elu(x: Tensor, *, alpha: float) -> Tensor:
    # x itself for x >= 0, as mx.minimum of -0 and 0 is 0, which loses the sign.
    return mx.where(x >= 0, x, alpha * mx.expm1(mx.minimum(x, 0.0)))


# MLX 0.32 has only `erf`, off by 1e6 eps near zero, and in float64 that of float32. These kernels
# fit Chebyshev polynomials: up to 1 of erf(x) / x in 2 x^2 - 1, and beyond of (1 + 2 x) exp(x^2)
# erfc(x) in (x - 3.75) / (x + 3.75). fmt: off
ERF_FLOAT32 = (
    1.231640173e-6,
    -1.766908081e-5,
    0.0002175119898,
    -0.002285419529,
    0.01985249772,
    -0.1405360973,
    0.9654687386,
)
ERF_FLOAT64 = (
    1.45481707596067901e-14,
    -3.80788273952634126e-13,
    9.1676067460694449e-12,
    -2.03522840489946704e-10,
    4.11580059766495944e-9,
    -7.51156928660088963e-8,
    1.22338273835240096e-6,
    -0.0000175371694411248254,
    0.000217517156041601072,
    -0.00228548556114411321,
    0.0198524966889837072,
    -0.140536089022717119,
    0.965468738669867308,
)
ERFC_FLOAT32 = (
    1.852194739e-5,
    2.204671891e-5,
    -0.0002843130758,
    0.0003301674563,
    0.001751157629,
    -0.009770087183,
    0.02836410512,
    -0.05868544049,
    0.09230393754,
    -0.1088052275,
    0.08227677399,
    0.003585495314,
    -0.1402405995,
    1.23751263,
)
ERFC_FLOAT64 = (
    -7.33950500852953935e-11,
    -3.75315827795962034e-11,
    9.02214970034059035e-10,
    5.45715730470468791e-10,
    -6.54556021248026729e-9,
    -4.38928415998632839e-9,
    4.09712231527030033e-8,
    2.42897629254887074e-8,
    -2.61147023599009552e-7,
    -5.82628107880077709e-8,
    1.75344342511063337e-6,
    -9.72849582211122029e-7,
    -0.000011445049125831309,
    0.0000223839120365506791,
    0.000051649407775463988,
    -0.00029015397928986766,
    0.000293713594805707373,
    0.00175562583242175281,
    -0.00974657954761962297,
    0.0283622774215155971,
    -0.0586933985905476187,
    0.0923043211601983343,
    -0.108803930141707455,
    0.082276738490151024,
    0.00358541548546369005,
    -0.140240598585547018,
    1.23751263083782758,
)
# fmt: on


def polynomial(x: Tensor, narrow: tuple[float, ...], wide: tuple[float, ...]) -> Tensor:
    """Evaluate a polynomial by Horner's scheme; the highest power comes first."""
    first, *rest = wide if x.dtype == mx.float64 else narrow
    total = mx.full(x.shape, first, dtype=x.dtype)
    for coefficient in rest:
        total = total * x + coefficient
    return total


def within(x: Tensor) -> Tensor:
    """Return erf(x) for |x| up to 1."""
    x = clip(x, -1.0, 1.0)
    return x * polynomial(2.0 * x * x - 1.0, ERF_FLOAT32, ERF_FLOAT64)


def beyond(x: Tensor) -> Tensor:
    """Return erfc(x) for x from 0 on."""
    x = mx.minimum(x, 40.0)  # erfc is 0 there in every dtype; infinity would make NaN
    scaled = polynomial((x - 3.75) / (x + 3.75), ERFC_FLOAT32, ERFC_FLOAT64) / (1.0 + 2.0 * x)
    # The square is split, as rounding it would cost x^2 eps.
    high = mx.floor(x * 16.0) / 16.0
    return scaled * exp(-(x - high) * (x + high)) * exp(-high * high)


@widened
def erf(x: Tensor) -> Tensor:
    size = mx.abs(x)
    far = mx.where(x < 0, beyond(size) - 1.0, 1.0 - beyond(size))
    return mx.where(size < 1.0, within(x), far)


@widened
def erfc(x: Tensor) -> Tensor:
    tail = beyond(mx.abs(x))
    far = mx.where(x < 0, 2.0 - tail, tail)
    # Up to 0.5 the difference keeps its digits; beyond, 1 - erf would cancel.
    return mx.where(mx.abs(x) < 0.5, 1.0 - within(x), far)


@widened
def erfinv(x: Tensor) -> Tensor:
    # As for normal draws, in float64, which only the CPU has: MLX's own erfinv is a float32 one.
    with mx.stream(mx.cpu):
        wide = x.astype(mx.float64)
        inside = random.erfinv(clip(wide, -1.0 + 2.0**-53, 1.0 - 2.0**-53), mx, True)
        outside = mx.where(wide == 1.0, math.inf, mx.where(wide == -1.0, -math.inf, math.nan))
        return mx.where(mx.abs(wide) < 1.0, inside, outside).astype(x.dtype)


OPS: dict[Op, Callable[..., Any]] = {
    **rows_of(vars()),
    ops.POW: power,
    ops.MAXIMUM: mx.maximum,
    ops.MINIMUM: mx.minimum,
    ops.ABS: mx.abs,
    ops.SQUARE: mx.square,
    ops.SQRT: mx.sqrt,
    ops.RSQRT: mx.rsqrt,
    ops.FLOOR: mx.floor,
    ops.CEIL: mx.ceil,
    ops.ROUND: mx.round,
    ops.EXPM1: mx.expm1,
    ops.LOG: mx.log,
    ops.LOG1P: mx.log1p,
    ops.LOG2: widened(mx.log2),
    ops.LOG10: widened(mx.log10),
    ops.TAN: mx.tan,
    ops.ASIN: mx.arcsin,
    ops.ACOS: mx.arccos,
    ops.ATAN: mx.arctan,
    ops.SINH: mx.sinh,
    ops.COSH: mx.cosh,
    ops.TANH: mx.tanh,
    ops.ASINH: mx.arcsinh,
    ops.ACOSH: mx.arccosh,
    ops.ATANH: mx.arctanh,
    # Functions instead of operators, as a number may come first.
    ops.AND: mx.bitwise_and,
    ops.OR: mx.bitwise_or,
    ops.XOR: mx.bitwise_xor,
    ops.BITWISE_AND: mx.bitwise_and,
    ops.BITWISE_OR: mx.bitwise_or,
    ops.BITWISE_XOR: mx.bitwise_xor,
    ops.ISNAN: mx.isnan,
    ops.ISINF: mx.isinf,
    ops.ISFINITE: mx.isfinite,
    ops.STOP_GRADIENT: mx.stop_gradient,
}
