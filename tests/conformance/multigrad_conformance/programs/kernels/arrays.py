"""What ops over whole arrays mean, in float64; see `elementwise.py`.

What moves elements moves their bounds with them. A permutation or a mask in which two elements
within each other's bounds may change places is not known for the whole row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...oracles import FLOAT64, finfo, fold_in, uniform
from ..bounded import (
    BOOL,
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
    unknown_where,
    way,
)
from .elementwise import evaluate, plus

Array = Any
Axis = Any


def axes_of(x: Bounded, axis: Axis) -> tuple[int, ...]:
    """The axes reduced over, of a scalar none."""
    if axis is None or not x.shape:
        return tuple(range(len(x.shape)))
    return tuple(i % len(x.shape) for i in (axis if isinstance(axis, tuple) else (axis,)))


def any_over(axes: tuple[int, ...], keepdims: bool) -> Function:
    def reach(mask: Array) -> Array:
        return np.any(mask, axis=axes, keepdims=keepdims)

    return reach


def along_rows(axis: Axis) -> Function:
    def reach(mask: Array) -> Array:
        over = axis if mask.ndim else None
        return np.broadcast_to(np.any(mask, axis=over, keepdims=True), mask.shape)

    return reach


# --- reductions -----------------------------------------------------------------------------------


def terms(x: Bounded, axes: tuple[int, ...]) -> int:
    return math.prod(x.shape[i] for i in axes)


def total(x: Bounded, axis: Axis, keepdims: bool) -> Bounded:
    axes = axes_of(x, axis)

    def function(a: Array) -> Array:
        return np.sum(a, axis=axes, keepdims=keepdims)

    return monotone(function, x, any_over(axes, keepdims), 2 + terms(x, axes) / 4, function)


def mean(x: Bounded, axis: Axis, keepdims: bool) -> Bounded:
    whole, count = total(x, axis, keepdims), terms(x, axes_of(x, axis))
    return evaluate("div", (whole, known(np.asarray(count, whole.dtype))), {}, whole.dtype)


def extreme(name: str) -> Function:
    def function(x: Bounded, axis: Axis, keepdims: bool) -> Bounded:
        axes, pick = axes_of(x, axis), getattr(np, name)
        return monotone(
            lambda a: pick(a, axis=axes, keepdims=keepdims), x, any_over(axes, keepdims), 0
        )

    return function


def quantifier(name: str) -> Function:
    def function(x: Bounded, axis: Axis, keepdims: bool) -> Bounded:
        axes, pick = axes_of(x, axis), getattr(np, name)
        doubt = np.broadcast_to(x.error > 0, x.shape)
        least, most = (
            pick(v, axis=axes, keepdims=keepdims) for v in (x.value & ~doubt, x.value | doubt)
        )
        value = pick(x.value, axis=axes, keepdims=keepdims)
        return Bounded(value, np.asarray(least != most, np.float64), BOOL)

    return function


def product(x: Bounded, axis: Axis, keepdims: bool) -> Bounded:
    axes = axes_of(x, axis)
    return multilinear(
        lambda a: np.prod(a, axis=axes, keepdims=keepdims),
        x,
        ulps=4 + terms(x, axes),
        in_parts=True,
    )


def count_nonzero(x: Bounded, axis: Axis, keepdims: bool) -> Bounded:
    axes = axes_of(x, axis)
    doubt = (x.error > 0) & (np.abs(x.value) <= x.error) | x.lost
    value = np.sum(x.value != 0, axis=axes, keepdims=keepdims)
    error = np.sum(np.broadcast_to(doubt, x.shape), axis=axes, keepdims=keepdims)
    return settle(value, error, x.dtype, 0)


def magnitude(x: Bounded) -> Bounded:
    """|x|, whose bounds do not go below zero."""
    low = np.maximum(np.abs(x.value) - x.error, 0)
    low = np.where(x.error > 0, low, np.abs(x.value))
    return Bounded(np.abs(x.value), np.where(x.error > 0, x.error, 0.0), x.dtype)


def norm(x: Bounded, axis: Axis, keepdims: bool, ord: float) -> Bounded:
    axes, size = axes_of(x, axis), magnitude(x)
    reach = any_over(axes, keepdims)
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


def log_sum_exp(x: Bounded, axis: Axis, keepdims: bool) -> Bounded:
    axes = axes_of(x, axis)

    def function(a: Array) -> Array:
        top = np.max(a, axis=axes, keepdims=True, initial=-np.inf)
        top = np.where(np.isfinite(top), top, 0)
        whole = top + np.log(np.sum(np.exp(a - top), axis=axes, keepdims=True))
        return whole if keepdims else np.squeeze(whole, axis=axes)

    def size(a: Array) -> Array:
        return np.max(a, axis=axes, keepdims=keepdims, initial=0) + 1

    return monotone(function, x, any_over(axes, keepdims), 4, size)


def variance(x: Bounded, axis: Axis, keepdims: bool, correction: float) -> Bounded:
    axes = axes_of(x, axis)
    centered = evaluate("sub", (x, mean(x, axis, True)), {}, x.dtype)
    squares = evaluate("square", (centered,), {}, x.dtype)
    count = max(terms(x, axes) - correction, 0)
    whole = total(squares, axis, keepdims)
    return evaluate("div", (whole, known(np.asarray(count, x.dtype))), {}, x.dtype)


def deviation(x: Bounded, axis: Axis, keepdims: bool, correction: float) -> Bounded:
    spread = variance(x, axis, keepdims, correction)
    result = elementwise(lambda a: np.sqrt(np.where(a < 0, 0, a)), spread)
    # Squares that overflow do not where a framework sums them in a wider dtype.
    over = np.isinf(spread.value) & np.isfinite(
        np.sum(np.abs(x.value), axis=axes_of(x, axis), keepdims=keepdims)
    )
    return unknown_where(result, over)


def softmax(x: Bounded, axis: Axis) -> Bounded:
    axes = axes_of(x, axis)
    top = extreme("max")(x, axes, True)
    powers = evaluate("exp", (evaluate("sub", (x, top), {}, x.dtype),), {}, x.dtype)
    return evaluate("div", (powers, total(powers, axes, True)), {}, x.dtype)


def log_softmax(x: Bounded, axis: Axis) -> Bounded:
    axes = axes_of(x, axis)
    shifted = evaluate("sub", (x, extreme("max")(x, axes, True)), {}, x.dtype)
    powers = total(evaluate("exp", (shifted,), {}, x.dtype), axes, True)
    logs = elementwise(np.log, powers, scale=plus(1))
    return evaluate("sub", (shifted, logs), {}, x.dtype)


def half(x: Bounded, axis: int, position: int) -> Bounded:
    return x.map(lambda a, fill: np.split(a, 2, axis=axis)[position])


def glu(x: Bounded, axis: int) -> Bounded:
    gate = evaluate("sigmoid", (half(x, axis, 1),), {}, x.dtype)
    return evaluate("mul", (half(x, axis, 0), gate), {}, x.dtype)


# --- products -------------------------------------------------------------------------------------


def matmul(a: Bounded, b: Bounded) -> Bounded:
    return multilinear(np.matmul, a, b, ulps=2 + a.shape[-1])


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


def matmul_left(cotangent: Bounded, b: Bounded, like: Bounded) -> Bounded:
    """By its definition: the one array whose product with any da is that of the cotangent with da @
    b.
    """

    def function(c: Array, other: Array) -> Array:
        result = np.zeros(like.shape)
        for place in np.ndindex(like.shape):
            unit = np.zeros(like.shape)
            unit[place] = 1.0
            chosen = np.matmul(unit, np.where(np.isfinite(other), other, 0.0))
            result[place] = np.sum(np.where(chosen == 0, 0.0, chosen * c))
        return result

    return bilinear(function, cotangent, b)


def matmul_right(a: Bounded, cotangent: Bounded, like: Bounded) -> Bounded:
    def function(c: Array, other: Array) -> Array:
        result = np.zeros(like.shape)
        for place in np.ndindex(like.shape):
            unit = np.zeros(like.shape)
            unit[place] = 1.0
            chosen = np.matmul(np.where(np.isfinite(other), other, 0.0), unit)
            result[place] = np.sum(np.where(chosen == 0, 0.0, chosen * c))
        return result

    return bilinear(function, cotangent, a)


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
    "sum": total, "mean": mean, "max": extreme("max"), "min": extreme("min"), "prod": product,
    "count_nonzero": count_nonzero, "norm": norm, "logsumexp": log_sum_exp, "var": variance,
    "std": deviation, "softmax": softmax, "log_softmax": log_softmax, "glu": glu, "matmul": matmul,
    "einsum": einsum, "matmul_left": matmul_left, "matmul_right": matmul_right,
}  # fmt: skip
ROWS: dict[str, Function] = {
    "any": quantifier("any"),
    "all": quantifier("all"),
    "uniform_like": uniform_like,
    "normal_like": normal_like,
    "bernoulli_like": bernoulli_like,
    "rademacher_like": rademacher_like,
    "exponential_like": exponential_like,
    "gumbel_like": gumbel_like,
    "fold_in": fold,
}
