"""Paddle's rows of the special functions: those that it lacks, or rounds too much (3.3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import paddle

from multigrad.backend import Op, ops, random, rows_of

from .elementwise import clip, exp, maximum, power, sqrt, where
from .widening import FLOAT64, Tensor, constant, equal, rounded, widened

ROOT_HALF = math.sqrt(0.5)
MILLS_FROM, inverse_mills = ops.special.MILLS_FROM, ops.special.inverse_mills


class Arithmetic:
    """What `multigrad.graph.random` computes with."""

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


OPS: dict[Op, Callable[..., Any]] = {
    **rows_of(vars()),
    ops.ERF: widened(paddle.erf),
    ops.LGAMMA: widened(paddle.lgamma),
    ops.I0E: widened(paddle.i0e),
    ops.I1E: widened(paddle.i1e),
}
