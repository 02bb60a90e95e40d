"""Paddle's rows of the array family: op to callable."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle

from multigrad.backend import Op, ops, rows_of

from . import convolutions, indices, linalg, ordering, random, shapes
from .elementwise import exp, power, sqrt, where
from .shapes import Axis, axes_of, sum_over, sum_to_shape
from .widening import (
    FLOAT32,
    FLOAT64,
    Tensor,
    constant,
    differ,
    is_float,
    is_half,
    rounded,
    wide,
    widened,
)


@widened
def sum_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    axes = axes_of(x, axis)
    if not axes:
        return paddle.assign(x)
    return rounded(sum_over(x, axes, keepdims), x.dtype)


@widened
def mean(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    axes = axes_of(x, axis)
    return sum_over(x, axes, keepdims) / count(x, axes)


def count(x: Tensor, axes: list[int]) -> int:
    return math.prod(x.shape[i] for i in axes)


def extreme(function: Callable[..., Tensor], x: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    axes = axes_of(x, axis)
    if not axes:
        return paddle.assign(x)
    if any(x.shape[i] == 0 for i in axes):
        raise ValueError(f"no largest or smallest element of a tensor of shape {tuple(x.shape)}")
    return rounded(function(wide(x), axes, keepdim=keepdims), x.dtype)


def max_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return extreme(paddle.amax, x, axis, keepdims)


def min_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return extreme(paddle.amin, x, axis, keepdims)


def any_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return counted(nonzero(x), axis, keepdims) > 0


def all_(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return counted(~nonzero(x), axis, keepdims) == 0


def nonzero(x: Tensor) -> Tensor:
    return differ(x, 0) if is_float(x) else x.astype("bool")


def counted(mask: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    return sum_over(mask.astype(paddle.int64), axes_of(mask, axis), keepdims)


def count_nonzero(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    return rounded(
        counted(differ(x, 0) if is_float(x) else x.astype("bool"), axis, keepdims), x.dtype
    )


@widened
def prod(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    axes = axes_of(x, axis)
    if not axes:
        return paddle.assign(x)
    if 0 in x.shape:
        kept = [1 if i in axes else n for i, n in enumerate(x.shape)]
        whole = paddle.ones(kept, x.dtype)
        return whole if keepdims else paddle.squeeze(whole, axes)
    return paddle.prod(x, axes, keepdim=keepdims)


@widened
def norm(x: Tensor, *, axis: Axis, keepdims: bool, ord: float) -> Tensor:
    axes = axes_of(x, axis)
    if ord == 1 or not axes:
        return sum_over(paddle.abs(x), axes, keepdims)
    if 0 in x.shape:
        return sum_over(x, axes, keepdims)
    if math.isinf(ord):
        return extreme(paddle.amax, paddle.abs(x), axis, keepdims)
    if ord == 2:
        return sqrt(sum_over(x * x, axes, keepdims))
    return power(sum_over(power(paddle.abs(x), ord), axes, keepdims), 1 / ord)


def shift_of(x: Tensor, axes: list[int]) -> Tensor:
    """The largest element, which exponentials are taken relative to; 0 where it is infinite."""
    largest = paddle.amax(x.detach(), axes, keepdim=True)
    return where(paddle.isfinite(largest), largest, 0.0)


@widened
def logsumexp(x: Tensor, *, axis: Axis, keepdims: bool) -> Tensor:
    axes = axes_of(x, axis)
    if not axes:
        return paddle.assign(x)
    if 0 in x.shape:
        return paddle.log(sum_over(x, axes, keepdims))
    shift = shift_of(x, axes)
    result = paddle.log(sum_over(exp(x - shift), axes, True)) + shift
    return result if keepdims else paddle.squeeze(result, axes)


@widened
def softmax(x: Tensor, *, axis: Axis) -> Tensor:
    axes = axes_of(x, axis)
    if not axes:
        return x - x + 1.0
    if 0 in x.shape:
        return paddle.assign(x)
    powers = exp(x - paddle.amax(x.detach(), axes, keepdim=True))
    return powers / sum_over(powers, axes, True)


@widened
def log_softmax(x: Tensor, *, axis: Axis) -> Tensor:
    axes = axes_of(x, axis)
    if not axes:
        return x - x
    if 0 in x.shape:
        return paddle.assign(x)
    apart = x - paddle.amax(x.detach(), axes, keepdim=True)
    return apart - paddle.log(sum_over(exp(apart), axes, True))


@widened
def glu(x: Tensor, *, axis: int) -> Tensor:
    first, second = (shapes.half(x, axis=axis, position=i) for i in (0, 1))
    return first * paddle.nn.functional.sigmoid(second)


@widened
def var(x: Tensor, *, axis: Axis, keepdims: bool, correction: float) -> Tensor:
    axes = axes_of(x, axis)
    number = count(x, axes)
    apart = x - sum_over(x, axes, True) / max(number, 1) if axes else x - x
    free = max(number - correction, 0)
    total = sum_over(apart * apart, axes, keepdims)
    return total / constant(float(free), x.dtype)


def std(x: Tensor, *, axis: Axis, keepdims: bool, correction: float) -> Tensor:
    spread = var(wide(x), axis=axis, keepdims=keepdims, correction=correction)
    return rounded(sqrt(spread), x.dtype)


def bernoulli_like(key: Any, x: Tensor, p: Any) -> Tensor:
    chance = wide(constant(p, x.dtype))
    return rounded((wide(random.uniform_like(key, x)) < chance), x.dtype)


def rademacher_like(key: Any, x: Tensor) -> Tensor:
    return rounded((2.0 * (wide(random.uniform_like(key, x)) < 0.5).astype(FLOAT32) - 1.0), x.dtype)


def uniform_wide(key: Any, x: Tensor) -> Tensor:
    """Uniforms in float32 for 16-bit dtypes, so that a function of them rounds once."""
    return random.uniform_like(key, wide(x))


def exponential_like(key: Any, x: Tensor) -> Tensor:
    return rounded((-paddle.log1p(-uniform_wide(key, x))), x.dtype)


def gumbel_like(key: Any, x: Tensor) -> Tensor:
    uniform = uniform_wide(key, x)
    tiny = float(paddle.finfo(uniform.dtype).tiny)
    positive = paddle.maximum(uniform, paddle.full_like(uniform, tiny))
    return rounded((-paddle.log(-paddle.log(positive))), x.dtype)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    return rounded(product(wide(a), wide(b)), a.dtype)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Paddle's, but for what is empty."""
    if 0 not in a.shape and 0 not in b.shape:
        return paddle.matmul(a, b)
    shape = np.matmul(np.zeros(tuple(a.shape)), np.zeros(tuple(b.shape))).shape
    return paddle.zeros(shape, a.dtype)


def transposed(x: Tensor) -> Tensor:
    return shapes.swapaxes(x, axis1=-1, axis2=-2)


def matmul_left(cotangent: Tensor, b: Tensor, like: Tensor) -> Tensor:
    columns = wide(b) if len(b.shape) > 1 else paddle.unsqueeze(wide(b), 1)
    result = product(as_matrix(wide(cotangent), like, b), transposed(columns))
    result = result if len(like.shape) > 1 else paddle.squeeze(result, -2)
    return rounded(sum_to_shape(result, tuple(like.shape)), cotangent.dtype)


def matmul_right(a: Tensor, cotangent: Tensor, like: Tensor) -> Tensor:
    rows = wide(a) if len(a.shape) > 1 else paddle.unsqueeze(wide(a), 0)
    result = product(transposed(rows), as_matrix(wide(cotangent), a, like))
    result = result if len(like.shape) > 1 else paddle.squeeze(result, -1)
    return rounded(sum_to_shape(result, tuple(like.shape)), cotangent.dtype)


def as_matrix(product: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Give the product of a and b back the axes that a vector among them took away."""
    product = paddle.unsqueeze(product, -1) if len(b.shape) == 1 else product
    return paddle.unsqueeze(product, -2) if len(a.shape) == 1 else product


def einsum(*arrays: Tensor, subscripts: str) -> Tensor:
    return rounded(paddle.einsum(subscripts, *map(wide, arrays)), arrays[0].dtype)


def array(like: Tensor, *, dtype: Any, value: Any) -> Tensor:
    """One tensor for each dtype; a constant of the graph where Paddle traces."""
    if not paddle.in_dynamic_mode():
        return made(value, dtype)
    place = "paddle", str(like.place), dtype
    tensor = value.native.get(place)
    if tensor is None:
        tensor = value.native[place] = made(value, dtype)
    return tensor


def made(value: Any, dtype: Any) -> Tensor:
    kind = "bool" if value.dtype == "bool" else "float64" if dtype_is_float(dtype) else "int64"
    return rounded(paddle.to_tensor(np.array(value.as_numpy(kind))), dtype)


def dtype_is_float(dtype: Any) -> bool:
    return is_half(dtype) or dtype in (FLOAT32, FLOAT64)


OPS: dict[Op, Callable[..., Any]] = {
    **rows_of(vars()),
    ops.FOLD_IN: random.fold_in,
    ops.UNIFORM_LIKE: random.uniform_like,
    ops.NORMAL_LIKE: random.normal_like,
    **ordering.OPS,
    **convolutions.OPS,
    **indices.OPS,
    **linalg.OPS,
    **shapes.OPS,
}
