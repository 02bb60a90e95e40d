"""The derivatives of the elementwise ops from calculus, in long doubles: nothing of the op table
is asked for them. At kinks they are what an op's row promises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

Wide = Any
PI = np.longdouble("3.14159265358979323846264338328")
TAU_ROOT = np.sqrt(2 * PI)
LN2, LN10 = np.log(np.longdouble(2)), np.log(np.longdouble(10))
SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


def constant(number: float) -> Callable[[Wide], Wide]:
    return lambda x: np.full_like(x, number)


def where_true(condition: Any) -> Wide:
    return np.where(condition, 1.0, 0.0)


def double(function: Callable[[Any], Any]) -> Callable[[Wide], Wide]:
    """SciPy has no long double."""
    return lambda x: function(np.asarray(x, np.float64))


def logistic(x: Wide) -> Wide:
    return np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))


def normal_density(x: Wide) -> Wide:
    return np.exp(-x * x / 2) / TAU_ROOT


def inverse_mills(x: Wide) -> Wide:
    """phi / Phi by the scaled erfc, which does not underflow."""
    near = np.sqrt(2 / np.pi) / special.erfcx(-np.maximum(x, -1e10) / np.sqrt(2))
    return np.where(x < -1e10, -x, near)


def i0e_slope(x: Wide) -> Wide:
    return special.i1e(x) - np.sign(x) * special.i0e(x)


def i1e_slope(x: Wide) -> Wide:
    """exp(-|x|) I1'(x) = exp(-|x|) (I0(x) + I2(x)) / 2, less the slope of the scale."""
    slope = (special.i0e(x) + special.ive(2, x)) / 2 - np.sign(x) * special.i1e(x)
    return np.where(np.abs(x) > 1e8, 0.0, slope)


def bessel_peak(x: Wide, y: Wide) -> Wide:
    """The terms of both slopes cancel where x is large."""
    return 3 * special.i0e(x.astype(np.float64))


def trigamma(x: Wide) -> Wide:
    right = special.zeta(2, np.where(x >= 0, x, 1 - x))
    angle = np.pi * (x - np.rint(x))
    left = (np.pi / np.sin(angle)) ** 2 - right
    return np.where(x >= 0, right, np.where(np.isinf(x), np.nan, left))


def digamma(x: Wide) -> Wide:
    left = special.psi(1 - x) - np.pi / np.tan(np.pi * (x - np.rint(x)))
    return np.where(x < 0, np.where(x == np.floor(x), np.nan, left), special.psi(x))


def tetragamma(x: Wide) -> Wide:
    inside = -2 * special.zeta(3, np.where(x > 0, x, 1.0))
    return np.where(x > 0, inside, np.where(x == 0, -np.inf, np.nan))


def sinc_slope(x: Wide) -> Wide:
    far = np.where(np.abs(x) < 0.05, 1.0, x)
    t = PI * far
    series = sum(
        (-1) ** k * 2 * k * PI ** (2 * k) / special.factorial(2 * k + 1) * x ** (2 * k - 1)
        for k in range(1, 9)
    )
    return np.where(np.abs(x) < 0.05, series, (np.cos(t) - np.sin(t) / t) / far)


def squareplus_slope(x: Wide) -> Wide:
    root = np.hypot(x, 2)
    left = 2 / (root * (root - np.minimum(x, 0)))
    right = np.where(x == np.inf, 1, (1 + x / root) / 2)
    return np.where(x < 0, left, right)


def mish_slope(x: Wide) -> Wide:
    t = np.tanh(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))
    return t + x * logistic(x) * (1 - t * t)


def gelu_slope(x: Wide) -> Wide:
    x64 = np.asarray(x, np.float64)
    return special.ndtr(x64) + x * normal_density(x)


def tanh_gelu_slope(x: Wide) -> Wide:
    x = np.clip(x, -30, 30)
    scale = np.sqrt(2 / PI)
    t = np.tanh(scale * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * scale * (1 + 3 * 0.044715 * x * x)


UNARY: dict[str, Callable[[Wide], Wide]] = {
    "negative": constant(-1.0), "abs": np.sign, "sign": constant(0.0), "square": lambda x: 2 * x,
    "sqrt": lambda x: 0.5 / np.sqrt(x), "rsqrt": lambda x: -0.5 / (x * np.sqrt(x)),
    "reciprocal": lambda x: -1 / (x * x), "floor": constant(0.0), "ceil": constant(0.0),
    "round": constant(0.0), "trunc": constant(0.0), "frac": constant(1.0),
    "cbrt": lambda x: 1 / (3 * np.cbrt(x) ** 2), "exp": np.exp, "expm1": np.exp,
    "log": lambda x: 1 / x, "log1p": lambda x: 1 / (1 + x), "exp2": lambda x: np.exp2(x) * LN2,
    "log2": lambda x: 1 / (x * LN2), "log10": lambda x: 1 / (x * LN10), "sin": np.cos,
    "cos": lambda x: -np.sin(x), "tan": lambda x: 1 / np.cos(x) ** 2,
    "asin": lambda x: 1 / np.sqrt((1 - x) * (1 + x)),
    "acos": lambda x: -1 / np.sqrt((1 - x) * (1 + x)), "atan": lambda x: 1 / (1 + x * x),
    "sinc": sinc_slope, "deg2rad": lambda x: np.full_like(x, PI / 180),
    "rad2deg": lambda x: np.full_like(x, 180 / PI), "sinh": np.cosh, "cosh": np.sinh,
    "tanh": lambda x: 1 / np.cosh(x) ** 2, "asinh": lambda x: 1 / np.hypot(x, 1),
    "acosh": lambda x: 1 / (np.sqrt(x - 1) * np.sqrt(x + 1)),
    "atanh": lambda x: 1 / ((1 - x) * (1 + x)),
    "erf": lambda x: 2 / np.sqrt(PI) * np.exp(-x * x),
    "erfc": lambda x: -2 / np.sqrt(PI) * np.exp(-x * x),
    "erfinv": double(lambda x: np.sqrt(np.pi) / 2 * np.exp(special.erfinv(x) ** 2)),
    "ndtr": normal_density,
    "ndtri": double(lambda x: np.sqrt(2 * np.pi) * np.exp(special.ndtri(x) ** 2 / 2)),
    "i0e": double(i0e_slope), "i1e": double(i1e_slope),
    "log_ndtr": double(inverse_mills), "lgamma": double(digamma), "digamma": double(trigamma),
    "polygamma": double(tetragamma), "nan_to_num": lambda x: where_true(np.isfinite(x)),
    "stop_gradient": constant(0.0), "sigmoid": lambda x: logistic(x) * logistic(-x),
    "log_sigmoid": lambda x: logistic(-x), "logit": lambda x: 1 / (x * (1 - x)),
    "relu": lambda x: where_true(x > 0), "relu6": lambda x: where_true((x > 0) & (x < 6)),
    "leaky_relu": lambda x: np.where(x > 0, 1.0, 0.01),
    "elu": lambda x: np.where(x > 0, 1.0, np.exp(np.minimum(x, 0))),
    "celu": lambda x: np.where(x > 0, 1.0, np.exp(np.minimum(x, 0) / 1.5)),
    "selu": lambda x: SELU_SCALE * np.where(x > 0, 1.0, SELU_ALPHA * np.exp(np.minimum(x, 0))),
    "gelu": gelu_slope, "gelu, approximate": tanh_gelu_slope,
    "silu": lambda x: logistic(x) * (1 + x * logistic(-x)), "mish": mish_slope,
    "softplus": logistic, "squareplus": squareplus_slope,
    "sparse_plus": lambda x: np.clip((x + 1) / 2, 0, 1),
    "sparse_sigmoid": lambda x: np.where(np.abs(x) < 1, 0.5, 0.0),
    "soft_sign": lambda x: 1 / (1 + np.abs(x)) ** 2, "tanh_shrink": lambda x: np.tanh(x) ** 2,
    "soft_shrink": lambda x: where_true(np.abs(x) > 0.5),
    "hard_shrink": lambda x: where_true(np.abs(x) > 0.5),
    "threshold": lambda x: where_true(x > 0.5),
    "hard_tanh": lambda x: where_true((x > -1) & (x < 1)),
    "hard_sigmoid": lambda x: np.where(np.abs(x) < 3, 1 / 6, 0.0),
    "hard_silu": lambda x: np.where(np.abs(x) < 3, (2 * x + 3) / 6, where_true(x > 0)),
    "heaviside": constant(0.0),
}  # fmt: skip
# What 4 eps is taken of, where a slope cancels or stands in an exponent: (x, slope) -> the largest
# value on the way.
PEAKS: dict[str, Callable[[Wide, Wide], Wide]] = {
    "exp2": lambda x, y: np.exp2(x),
    "i0e": bessel_peak,
    "i1e": bessel_peak,
    "sinc": lambda x, y: np.full_like(x, np.pi),  # the angle's error, over x
    "tanh": lambda x, y: np.ones_like(x),  # 1 - tanh^2
    "sigmoid": lambda x, y: np.ones_like(x),  # 1 - s
    "erf": lambda x, y: np.abs(y) * (1 + x * x),
    "erfc": lambda x, y: np.abs(y) * (1 + x * x),
    "ndtr": lambda x, y: np.abs(y) * (1 + x * x),
    "log_ndtr": lambda x, y: np.abs(y) * np.where(x < -8, 1, 1 + x * x),
    "erfinv": lambda x, y: np.abs(y) * (1 + 2 * np.log(np.fmax(np.abs(y), 1))),
    "ndtri": lambda x, y: np.abs(y) * (1 + 2 * np.log(np.fmax(np.abs(y), 1))),
    "lgamma": lambda x, y: np.abs(y) + 2.5,
    "celu": lambda x, y: np.abs(y) * (1 + np.abs(x)),
    "gelu": lambda x, y: np.ones_like(x),
    "silu": lambda x, y: 1 + np.abs(x),
    "mish": lambda x, y: 1 + np.abs(x),
    "gelu, approximate": lambda x, y: (
        1 + 0.4 * np.fmin(np.abs(x), 10) * (1 + 0.134 * np.fmin(x * x, 100))
    ),
}
Pair = tuple[Wide, Wide]
BINARY: dict[str, Callable[[Wide, Wide], Pair]] = {
    "add": lambda a, b: (np.ones_like(a), np.ones_like(a)),
    "subtract": lambda a, b: (np.ones_like(a), -np.ones_like(a)),
    "multiply": lambda a, b: (b, a),
    "divide": lambda a, b: (1 / b, -a / b / b),
    "maximum": lambda a, b: (share(a, a > b, b), share(a, ~(a > b), b)),
    "minimum": lambda a, b: (share(a, a < b, b), share(a, ~(a < b), b)),
    "fmax": lambda a,
    b: (share(a, (a > b) | np.isnan(b), b), share(a, ~((a > b) | np.isnan(b)), b)),
    "fmin": lambda a,
    b: (share(a, (a < b) | np.isnan(b), b), share(a, ~((a < b) | np.isnan(b)), b)),
    "floor_divide": lambda a, b: (np.zeros_like(a), np.zeros_like(a)),
    "copysign": lambda a,
    b: (np.where(np.signbit(a) == np.signbit(b), 1.0, -1.0), np.zeros_like(a)),
    "nextafter": lambda a, b: (np.ones_like(a), np.zeros_like(b)),
    "hypot": lambda a, b: (over(a, np.hypot(a, b)), over(b, np.hypot(a, b))),
    "atan2": lambda a,
    b: (over(over(b, np.hypot(a, b)), np.hypot(a, b)),
        -over(over(a, np.hypot(a, b)), np.hypot(a, b))),
    "logaddexp": lambda a, b: (logistic(a - b), logistic(b - a)),
    "pow": lambda a, b: (
        np.where(b == 0, 0, b * np.power(a, b - 1)), np.where(a > 0, np.power(a, b) * np.log(a), 0)
    ),
    "remainder": lambda a, b: (np.ones_like(a), -np.floor_divide(a, b)),
    "fmod": lambda a, b: (np.ones_like(a), -(a - np.fmod(a, b)) / b),
    "xlogy": lambda a, b: (np.where((a == 0) & (b <= 0), 0, np.log(b)), np.where(a == 0, 0, a / b)),
    "xlog1py": lambda a,
    b: (np.where((a == 0) & (b <= -1), 0, np.log1p(b)), np.where(a == 0, 0, a / (1 + b))),
}  # fmt: skip
# The largest value on the way to both slopes, where it is not one of them.
BINARY_PEAKS: dict[str, Callable[[Wide, Wide, Wide], Wide]] = {
    "logaddexp": lambda a, b, y: np.abs(y) * (1 + np.abs(a - b)),
    # b - 1 is rounded, and stands in the exponent
    "pow": lambda a, b, y: np.abs(y) * (1 + np.abs(np.log(np.abs(a)))),
}
# Above the range of the dtype, where the op itself is infinite, its slopes are zero.
LENGTHS: dict[str, Callable[[Wide, Wide], Wide]] = {"hypot": np.hypot, "atan2": np.hypot}


def share(a: Wide, chosen: Any, b: Wide) -> Wide:
    """The whole cotangent to the one that is chosen, half to each of two equal ones."""
    return np.where(a == b, 0.5, where_true(chosen))


def over(a: Wide, length: Wide) -> Wide:
    return a / np.where(length == 0, 1, length)
