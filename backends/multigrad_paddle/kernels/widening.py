"""How kernels take 16-bit floats, numbers and 0-d tensors.

Paddle (3.3) has few CPU kernels for float16 and bfloat16: all is computed in float32, rounded once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import paddle

Tensor = Any
TENSORS = (paddle.Tensor, paddle.pir.Value)
FLOAT16, BFLOAT16, FLOAT32 = paddle.float16, paddle.bfloat16, paddle.float32
FLOAT64, INT32, INT64, BOOL = paddle.float64, paddle.int32, paddle.int64, paddle.bool
HALVES = (FLOAT16, BFLOAT16)
FLOATS = (FLOAT32, FLOAT64, FLOAT16, BFLOAT16)


def is_tensor(value: Any) -> bool:
    return isinstance(value, TENSORS)


def is_half(dtype: Any) -> bool:
    # Dtypes compare in 0.8 us. From 3.3 on each is one object; before, a new one each time.
    if dtype is FLOAT32 or dtype is FLOAT64:
        return False
    return dtype is FLOAT16 or dtype is BFLOAT16 or dtype in HALVES


def are_same(a: Any, b: Any) -> bool:
    """Return whether two dtypes are one."""
    return a is b or a == b


def is_float(x: Tensor) -> bool:
    return any(x.dtype == dtype for dtype in FLOATS)


def wide(x: Tensor) -> Tensor:
    """16-bit floats in float32, so that a result rounds once."""
    return x.astype(FLOAT32) if is_half(x.dtype) else x


def rounded(x: Tensor, dtype: Any) -> Tensor:
    """x in a dtype; Paddle's float16 (3.3, CPU) of what is below half of its least is a number."""
    if are_same(x.dtype, dtype):
        return x
    if dtype == FLOAT16 and (x.dtype == FLOAT32 or x.dtype == FLOAT64):
        x = paddle.where(paddle.abs(x) < 2.0**-25, paddle.multiply(x, paddle.zeros_like(x)), x)
    return x.astype(dtype)


def equal(a: Any, b: Any) -> Tensor:
    """Whether numbers are equal: paddle.equal (3.3) takes floats within 1e-8 for that."""
    return (a <= b) & (a >= b)


def differ(a: Any, b: Any) -> Tensor:
    return ~equal(a, b)


CONSTANTS: dict[tuple[Any, Any], Tensor] = {}
MOST_CONSTANTS = 1024
# A tensor made of a number costs as much as four ops: those of a CPU are kept.
KEEPS_CONSTANTS = not paddle.is_compiled_with_cuda()


def constant(value: Any, dtype: Any) -> Tensor:
    """A number as a tensor without axes, which nobody may write to."""
    if is_tensor(value):
        return rounded(value, dtype)
    if not (KEEPS_CONSTANTS and paddle.in_dynamic_mode()):
        return made(value, dtype)
    is_own = value and not math.isnan(value)  # -0.0 equals 0.0, and NaN nothing
    key = value if is_own else str(value), dtype
    known = CONSTANTS.get(key)
    if known is None:
        if len(CONSTANTS) >= MOST_CONSTANTS:
            CONSTANTS.clear()
        known = CONSTANTS[key] = made(value, dtype)
    return known


def made(value: Any, dtype: Any) -> Tensor:
    """A number as a tensor; one too large for the dtype is infinite."""
    if dtype == FLOAT16 and abs(value) >= 65520.0:
        value = math.copysign(math.inf, value)
    return paddle.full([], value, dtype)


def factor(value: Any, x: Tensor) -> Tensor:
    """A number as a factor of x."""
    return value if is_tensor(value) else constant(value, x.dtype)


def dtype_of(values: tuple[Any, ...]) -> Any:
    """The dtype of the tensors among values, by one that has axes if there is one."""
    tensors = [value for value in values if is_tensor(value)]
    return next((x for x in tensors if len(x.shape)), tensors[0]).dtype


def widened(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compute 16-bit floats in float32 and round once; a number stays one."""

    @functools.wraps(function)
    def call(*values: Any, **attrs: Any) -> Tensor:
        for value in values:
            if is_tensor(value):
                dtype = value.dtype
                if is_half(dtype):
                    result = function(*(wide(v) if is_tensor(v) else v for v in values), **attrs)
                    return rounded(result, dtype) if are_same(result.dtype, FLOAT32) else result
        return function(*values, **attrs)

    return call


def aligned(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Take numbers and 0-d tensors beside a tensor, as tensors of its dtype; as `widened`."""

    @functools.wraps(function)
    def call(*values: Any) -> Tensor:
        dtype = dtype_of(values)
        operands = [wide(constant(value, dtype)) for value in values]
        result = function(*operands)
        return rounded(result, dtype) if are_same(result.dtype, operands[0].dtype) else result

    return call
