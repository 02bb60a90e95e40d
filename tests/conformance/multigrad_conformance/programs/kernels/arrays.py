"""What ops over whole arrays mean, in float64; see `elementwise.py`.

Here are those of which moving the operands does not tell what the roundings do (`meaning.py`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from multigrad.core import ops
from multigrad.core.ir.op import Op

from ...differences import DESIGNED
from ...oracles import FLOAT64, finfo, fold_in, uniform
from ..bounded import (
    Bounded,
    Function,
    as_dtype,
    compare,
    elementwise,
    known,
    monotone,
    multilinear,
    narrowed,
    settle,
    way,
)
from ..meaning import by_meaning

Array = Any
Axis = Any


def axes_of(x: Bounded, axis: Axis) -> tuple[int, ...]:
    """The axes reduced over, of a scalar none."""
    if axis is None or not x.shape:
        return tuple(range(len(x.shape)))
    return tuple(i % len(x.shape) for i in (axis if isinstance(axis, tuple) else (axis,)))


# --- what overflows or cancels on the way ---------------------------------------------------------


def terms(x: Bounded, axes: tuple[int, ...]) -> int:
    return math.prod(x.shape[i] for i in axes)


def product(x: Bounded, axis: Axis, keepdims: bool) -> Bounded:
    axes = axes_of(x, axis)
    return multilinear(
        lambda a: np.prod(a, axis=axes, keepdims=keepdims),
        x,
        ulps=4 + terms(x, axes),
        in_parts=True,
    )


def cumprod(x: Bounded, axis: int) -> Bounded:
    function, count = ops.CUMPROD.numpy, x.shape[axis] if x.shape else 1
    return multilinear(lambda a: function(a, axis=axis), x, ulps=4 + count, in_parts=True)


def magnitude(x: Bounded) -> Bounded:
    """|x|, whose bounds do not go below zero."""
    low = np.maximum(np.abs(x.value) - x.error, 0)
    low = np.where(x.error > 0, low, np.abs(x.value))
    return Bounded(np.abs(x.value), np.where(x.error > 0, x.error, 0.0), x.dtype)


def norm(x: Bounded, axis: Axis, keepdims: bool, ord: float) -> Bounded:
    axes, size = axes_of(x, axis), magnitude(x)

    def reach(mask: Array) -> Array:
        return np.any(mask, axis=axes, keepdims=keepdims)

    if ord == math.inf:
        return monotone(
            lambda a: np.max(np.abs(a), axis=axes, keepdims=keepdims, initial=0), size, reach, 0
        )

    def powers(a: Array) -> Array:
        return np.sum(np.maximum(a, 0) ** ord, axis=axes, keepdims=keepdims)

    whole = monotone(powers, size, reach, 8 + 8 * ord + terms(x, axes) / 2, powers)
    floor = slack_of_powers(x.dtype, ord, terms(x, axes))
    whole = Bounded(
        whole.value, np.where(whole.value == 0, whole.error, whole.error + floor), whole.dtype
    )
    return elementwise(lambda a: np.maximum(a, 0) ** (1 / ord), whole, ulps=8 * max(1, 1 / ord))


def slack_of_powers(dtype: Any, ord: float, count: int) -> float:
    """What is lost where powers underflow."""
    return count * float(finfo(dtype).smallest_normal) if ord > 1 else 0.0


def of_logarithm(op: Op) -> Function:
    """The logarithm of a sum is off by eps of one however small the result is."""

    def function(x: Bounded, **attrs: Any) -> Bounded:
        found = by_meaning(op, (x,), attrs, x.dtype)
        return replace(found, error=found.error + DESIGNED * float(finfo(x.dtype).eps))

    return function


# --- products -------------------------------------------------------------------------------------


def einsum(*arrays: Bounded, subscripts: str) -> Bounded:
    count = max(math.prod(x.shape) for x in arrays) ** 2
    letters = subscripts.replace(".", "").replace(",", "").replace("->", "")
    apart = len(arrays) > 2 or any(letters.count(letter) == 1 for letter in letters)
    return multilinear(
        lambda *xs: np.einsum(subscripts, *xs),
        *arrays,
        ulps=2 + min(count, 64),
        in_parts=apart,
        apart=apart,
    )


def bilinear(function: Function, x: Bounded, y: Bounded) -> Bounded:
    """Nothing is known where either may not be finite: by definition they are."""
    if not all(np.all(np.isfinite(o.value + o.error)) for o in (x, y)):
        value = function(np.zeros(x.shape), np.zeros(y.shape))
        return Bounded(value, np.full(np.shape(value), np.inf), x.dtype)
    return multilinear(function, x, y, ulps=64)


# --- random draws ---------------------------------------------------------------------------------


def draw(key: Any, x: Bounded, dtype: Any) -> Bounded:
    numbers = uniform(tuple(key), math.prod(x.shape), dtype)
    return known(np.asarray(numbers).reshape(x.shape))


def uniform_like(key: Any, x: Bounded) -> Bounded:
    return draw(key, x, x.dtype)


def normal_like(key: Any, x: Bounded) -> Bounded:
    """sqrt(2) erfinv(2u - 1), u moved by half a step; the polynomial is 90 eps off in float32."""
    from scipy import special

    wide = way(x.dtype)
    half_step = 2.0**-53 if wide == FLOAT64 else 2.0**-24
    value = 2**0.5 * special.erfinv(2 * draw(key, x, wide).value - 1 + half_step)
    return narrowed(settle(value, 0 * value, wide, 16 if wide == FLOAT64 else 90), x.dtype)


def bernoulli_like(key: Any, x: Bounded, p: Bounded) -> Bounded:
    mask = compare(np.less, uniform_like(key, x), as_dtype(p, x.dtype))
    return as_dtype(mask, x.dtype)


def rademacher_like(key: Any, x: Bounded) -> Bounded:
    return known(np.where(uniform_like(key, x).value < 0.5, 1.0, -1.0).astype(x.dtype))


def exponential_like(key: Any, x: Bounded) -> Bounded:
    value = -np.log1p(-draw(key, x, way(x.dtype)).value)
    return settle(value, 0 * value, x.dtype, 4)


def gumbel_like(key: Any, x: Bounded) -> Bounded:
    wide = way(x.dtype)
    u = np.maximum(draw(key, x, wide).value, float(finfo(wide).smallest_normal))
    value = -np.log(-np.log(u))
    return narrowed(settle(value, 0 * value, wide, 4, np.abs(value) + 2), x.dtype)


def fold(key: Any, n: int) -> Any:
    return fold_in(tuple(key), n)


# Rows whose 16-bit floats are summed in float32.
WIDE: dict[str, Function] = {
    "prod": product,
    "cumprod": cumprod,
    "norm": norm,
    "logsumexp": of_logarithm(ops.LOGSUMEXP),
    "log_softmax": of_logarithm(ops.LOG_SOFTMAX),
    "einsum": einsum,
}
ROWS: dict[str, Function] = {
    "uniform_like": uniform_like,
    "normal_like": normal_like,
    "bernoulli_like": bernoulli_like,
    "rademacher_like": rademacher_like,
    "exponential_like": exponential_like,
    "gumbel_like": gumbel_like,
    "fold_in": fold,
}
