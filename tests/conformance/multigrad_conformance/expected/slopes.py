"""What the tests of derivatives know beside the vectors (exact.py): slopes of several operands at
infinities and zeros, which those leave out, and how large numbers get on the way. From calculus, in
long doubles; nothing of the op table is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from ..programs.kernels.elementwise import lgamma_scale

Wide = Any
INF, NAN = np.inf, np.nan


def where_true(condition: Any) -> Wide:
    return np.where(condition, 1.0, 0.0)


def logistic(x: Wide) -> Wide:
    return np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))


def bessel_peak(x: Wide, y: Wide) -> Wide:
    """The terms of both slopes cancel where x is large."""
    return 3 * special.i0e(x.astype(np.float64))


# What an op gives where its vectors have nothing, or what mathematics tends to: (x, slope).
PROMISED: dict[str, tuple[tuple[float, float], ...]] = {
    **dict.fromkeys(("abs", "cbrt", "selu", "sparse_plus", "elu", "celu"), ((NAN, NAN),)),
    **dict.fromkeys(
        (
            "relu", "relu6", "sparse_sigmoid", "hard_sigmoid", "hard_silu", "sign", "trunc",
            "heaviside", "soft_shrink", "hard_shrink", "threshold", "hard_tanh",
        ),
        ((NAN, 0.0),),
    ),
    **dict.fromkeys(("silu", "mish", "gelu"), ((INF, NAN), (-INF, NAN))),
    **dict.fromkeys(("sqrt", "rsqrt", "log"), ((-0.0, -INF),)),
    "frac": ((NAN, 1.0),), "leaky_relu": ((NAN, 0.01),), "log1p": ((-1.0, INF),),
    "asin": ((1.0, INF), (-1.0, INF)), "acos": ((1.0, -INF), (-1.0, -INF)),
    "acosh": ((1.0, INF), (-1.0, NAN)), "atanh": ((1.0, INF), (-1.0, INF)), "logit": ((1.0, INF),),
    "sinc": ((NAN, NAN), (INF, NAN), (-INF, NAN)),
    "lgamma": ((-INF, NAN), (-1.0, NAN), (-2.0, NAN), (-3.0, NAN), (-6.0, NAN)),
    "digamma": ((-1.0, INF), (-2.0, INF), (-3.0, INF), (-6.0, INF)),
    "polygamma": (
        (-INF, NAN), (-6.0, NAN), (-2.0, NAN), (-1.0, NAN), (-0.5, NAN), (-0.0, -INF), (0.0, -INF)
    ),
}  # fmt: skip
# The same of values: (x, value).
PROMISED_VALUES: dict[str, tuple[tuple[float, float], ...]] = {
    **dict.fromkeys(
        (
            "abs", "sign", "trunc", "frac", "cbrt", "sinc", "relu", "relu6", "leaky_relu", "elu",
            "celu", "selu", "sparse_plus", "sparse_sigmoid", "hard_sigmoid", "soft_shrink",
            "hard_shrink", "threshold", "hard_tanh",
        ),
        ((NAN, NAN),),
    ),
    "heaviside": ((NAN, 0.0),), "sqrt": ((-0.0, -0.0),), "rsqrt": ((-0.0, -INF),),
    **dict.fromkeys(("silu", "mish", "gelu", "gelu, approximate"), ((-INF, NAN),)),
    "hard_silu": ((NAN, NAN), (-INF, NAN)),
    "soft_sign": ((INF, NAN), (-INF, NAN)),
    "digamma": ((-INF, NAN),),
    "lgamma": ((-INF, INF),),
}  # fmt: skip
# What 4 eps is taken of where it is not the value: the largest on the way, by (operand, value).
SCALES: dict[str, Callable[[Wide, Wide], Wide]] = {
    "gelu": lambda x, y: np.abs(x),
    "silu": lambda x, y: np.abs(x),
    "elu": lambda x, y: np.abs(y) + 1,
    "softplus": lambda x, y: np.abs(x) + 1,
    "sigmoid": lambda x, y: np.ones_like(x),
    "erfc": lambda x, y: np.abs(y) * (1 + x * x),  # the square in the exponent
    "ndtr": lambda x, y: np.abs(y) * (1 + x * x),
    "log_ndtr": lambda x, y: np.abs(y) * (1 + x * x),
    "sinc": lambda x, y: np.ones_like(x),
    "i1e": lambda x, y: 3 * np.abs(y),  # Cephes's series in float32
    "lgamma": lgamma_scale,
    "digamma": lambda x, y: np.abs(y) + 2.5,
    "logit": lambda x, y: np.abs(y) + 1,
    "mish": lambda x, y: np.abs(x),
    "tanh_shrink": lambda x, y: np.abs(x),
    "logaddexp": lambda a, y: np.abs(y) + 1,
    "lerp": lambda start, y: np.abs(y) + np.abs(start),
}
# The same of a slope that cancels or stands in an exponent: (x, slope).
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
# The value, and the slope in each operand that has one.
TERNARY: dict[str, Callable[[Wide, Wide, Wide], tuple[Wide, ...]]] = {
    "clip": lambda x, low, high: (
        np.minimum(np.maximum(x, low), high),
        where_true((x >= low) & (x <= high)), where_true((x < low) & (low < high)),
        where_true((x > high) | (high < low)),
    ),
    "lerp": lambda start, end, weight: (
        np.where(np.abs(weight) < 0.5, start + weight * (end - start),
                 end - (1 - weight) * (end - start)),  # from its nearer end
        1 - weight, weight, end - start,
    ),
    "where": lambda condition, a, b: (
        np.where(condition > 0.5, a, b), where_true(condition > 0.5), where_true(~(condition > 0.5))
    ),
}  # fmt: skip
# The same of both slopes of two operands: (a, b, slope).
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
