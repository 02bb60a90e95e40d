"""Paddle's rows of the elementwise family: op to callable."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import paddle
import paddle.nn.functional as F

from multigrad.backend import Op, ops, rows_of

from .widening import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT32,
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

LARGEST, MOST_IN_FLOAT8 = ops.selection.LARGEST, ops.selection.MOST_IN_FLOAT8
# As bits; and from where on what is rounded is infinite.
NAN_IN_E4M3, INFINITY_IN_E5M2, INFINITE_IN_E5M2 = 0x7F, 0x7C, 61440.0


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
    x = constant(x, dtype_of((x, min, max)))  # a number between a number and a tensor
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
    if dtype in (paddle.float8_e4m3fn, paddle.float8_e5m2):
        return cast_to_float8(x.astype(FLOAT32), dtype)
    # What is out of range is left to the processor otherwise.
    low, high = (-LARGEST, LARGEST) if dtype == INT64 else bounds(dtype)
    near = x.astype(FLOAT64)
    return rounded(clip(where(paddle.isnan(near), 0.0, near), low, high), dtype)


def cast_to_float8(x: Tensor, dtype: Any) -> Tensor:
    """As everywhere: Paddle (3.3) gives the largest number for what is beyond it, and for NaN."""
    bits, size = x.astype(dtype).view("uint8").astype(INT32), paddle.abs(x)
    if dtype == paddle.float8_e4m3fn:
        bits = where(size <= MOST_IN_FLOAT8, bits, NAN_IN_E4M3)
    else:
        bits = where(size >= INFINITE_IN_E5M2, INFINITY_IN_E5M2 + 128 * (x < 0).astype(INT32), bits)
    return bits.astype("uint8").view(dtype)


def bounds(dtype: Any) -> tuple[float, float]:
    info = paddle.iinfo(dtype)
    return float(info.min), float(info.max)


def full_like(x: Tensor, value: Any, *, dtype: Any = None) -> Tensor:
    return paddle.expand(constant(value, dtype or x.dtype), x.shape)


def sqrt(x: Tensor) -> Tensor:
    # paddle.sqrt (3.3): NaN at infinity, and 0 for subnormal numbers.
    near = x.astype(FLOAT64)
    finite = equal(near, near) & (near < math.inf)
    return rounded(paddle.where(finite, paddle.sqrt(where(finite, near, 1.0)), near), x.dtype)


def rsqrt(x: Tensor) -> Tensor:
    return rounded((1.0 / sqrt(x.astype(FLOAT64))), x.dtype)


@widened
def signbit(x: Tensor) -> Tensor:
    kind = paddle.int64 if x.dtype == FLOAT64 else paddle.int32
    return x.view(kind) < 0 if x.size else x < 0


@aligned
def copysign(a: Tensor, b: Tensor) -> Tensor:
    size = paddle.abs(a)
    return paddle.where(signbit(b), -size, size)


@aligned
def hypot(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype == paddle.float32:  # whose square root is 2.4 eps off on some processors
        wide, other = a.astype("float64"), b.astype("float64")
        length = paddle.sqrt(wide * wide + other * other).astype("float32")
        return where(paddle.isinf(a) | paddle.isinf(b), math.inf, length)
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


# A number beside a tensor is made one of its dtype before they are computed on.
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


maximum, minimum = aligned(paddle.maximum), aligned(paddle.minimum)


# --- activations ---------------------------------------------------------------------------------
@widened
def relu(x: Tensor) -> Tensor:
    return paddle.maximum(x, paddle.zeros_like(x))  # F.relu (3.3) makes 0 of NaN


def heaviside(x: Tensor) -> Tensor:
    return rounded((x > 0), x.dtype)


@widened
def leaky_relu(x: Tensor, *, slope: float) -> Tensor:
    return paddle.where(x > 0, x, mul(slope, x))  # which keeps the sign of zero


@widened
def sigmoid(x: Tensor) -> Tensor:
    return F.sigmoid(x)


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
    ops.ISNAN: widened(paddle.isnan),
    ops.ISINF: widened(paddle.isinf),
    ops.ISFINITE: widened(paddle.isfinite),
}
