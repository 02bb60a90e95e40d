"""The neutral dialect, special functions and bits of integers; see `neutral.py`."""

from __future__ import annotations

import math
from typing import Any

from . import ops
from .neutral_elementwise import equal, isnan, where
from .record import Value, apply, are_bools

Tensor = Any

__all__ = [
    "acos", "acosh", "asin", "asinh", "atan2", "atanh", "bitwise_and", "bitwise_invert",
    "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "cbrt", "copysign",
    "cosh", "deg2rad", "digamma", "erfc", "erfinv", "exp2", "floor_divide", "fmax", "fmin", "fmod",
    "frac", "hypot", "lerp", "lgamma", "log2", "log10", "log_ndtr", "logaddexp", "nan_to_num",
    "ndtr", "ndtri", "polygamma", "rad2deg", "remainder", "signbit", "sinc", "sinh", "tan",
    "xlog1py", "xlogy",
]  # fmt: skip


def frac(x: Tensor) -> Tensor:
    return apply(ops.FRAC, x)


def cbrt(x: Tensor) -> Tensor:
    return apply(ops.CBRT, x)


def signbit(x: Tensor) -> Tensor:
    return apply(ops.SIGNBIT, x)


def exp2(x: Tensor) -> Tensor:
    return apply(ops.EXP2, x)


def log2(x: Tensor) -> Tensor:
    return apply(ops.LOG2, x)


def log10(x: Tensor) -> Tensor:
    return apply(ops.LOG10, x)


def tan(x: Tensor) -> Tensor:
    return apply(ops.TAN, x)


def asin(x: Tensor) -> Tensor:
    return apply(ops.ASIN, x)


def acos(x: Tensor) -> Tensor:
    return apply(ops.ACOS, x)


def sinc(x: Tensor) -> Tensor:
    """sin(pi x) / (pi x), and 1 at zero."""
    return apply(ops.SINC, x)


def deg2rad(x: Tensor) -> Tensor:
    return apply(ops.DEG2RAD, x)


def rad2deg(x: Tensor) -> Tensor:
    return apply(ops.RAD2DEG, x)


def sinh(x: Tensor) -> Tensor:
    return apply(ops.SINH, x)


def cosh(x: Tensor) -> Tensor:
    return apply(ops.COSH, x)


def asinh(x: Tensor) -> Tensor:
    return apply(ops.ASINH, x)


def acosh(x: Tensor) -> Tensor:
    return apply(ops.ACOSH, x)


def atanh(x: Tensor) -> Tensor:
    return apply(ops.ATANH, x)


def erfc(x: Tensor) -> Tensor:
    return apply(ops.ERFC, x)


def erfinv(x: Tensor) -> Tensor:
    return apply(ops.ERFINV, x)


def ndtr(x: Tensor) -> Tensor:
    """The normal distribution function."""
    return apply(ops.NDTR, x)


def ndtri(x: Tensor) -> Tensor:
    return apply(ops.NDTRI, x)


def log_ndtr(x: Tensor) -> Tensor:
    return apply(ops.LOG_NDTR, x)


def lgamma(x: Tensor) -> Tensor:
    return apply(ops.LGAMMA, x)


def digamma(x: Tensor) -> Tensor:
    return apply(ops.DIGAMMA, x)


def floor_divide(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.FLOOR_DIVIDE, a, b)


def remainder(a: Tensor, b: Tensor) -> Tensor:
    """a - b floor(a / b), with the sign of b."""
    return apply(ops.REMAINDER, a, b)


def fmod(a: Tensor, b: Tensor) -> Tensor:
    """a - b trunc(a / b), with the sign of a."""
    return apply(ops.FMOD, a, b)


def fmax(a: Tensor, b: Tensor) -> Tensor:
    """The larger; a number rather than NaN."""
    return apply(ops.FMAX, a, b)


def fmin(a: Tensor, b: Tensor) -> Tensor:
    """The smaller; a number rather than NaN."""
    return apply(ops.FMIN, a, b)


def copysign(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.COPYSIGN, a, b)


def hypot(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.HYPOT, a, b)


def atan2(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.ATAN2, a, b)


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.LOGADDEXP, a, b)


def xlogy(a: Tensor, b: Tensor) -> Tensor:
    """a log(b); zero where a is zero."""
    return apply(ops.XLOGY, a, b)


def xlog1py(a: Tensor, b: Tensor) -> Tensor:
    """a log(1 + b); zero where a is zero."""
    return apply(ops.XLOG1PY, a, b)


def lerp(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """start + weight (end - start)."""
    return apply(ops.LERP, start, end, weight)


def polygamma(n: int, x: Tensor) -> Tensor:
    """The n-th derivative of digamma; for n above zero NaN where x is negative."""
    return apply(ops.POLYGAMMA, x, n=int(n)) if n else digamma(x)


def nan_to_num(
    x: Tensor, nan: Tensor = 0.0, posinf: Tensor | None = None, neginf: Tensor | None = None
) -> Tensor:
    """x with NaN and infinities replaced; None: by the largest number of the dtype."""
    if not any(isinstance(value, Value) for value in (nan, posinf, neginf)):
        given = {"nan": nan, "posinf": posinf, "neginf": neginf}
        numbers = {name: None if v is None else float(v) for name, v in given.items()}
        return apply(ops.NAN_TO_NUM, x, **numbers)
    finite = apply(ops.NAN_TO_NUM, x, nan=0.0, posinf=None, neginf=None)
    above = finite if posinf is None else where(equal(x, math.inf), posinf, finite)
    below = above if neginf is None else where(equal(x, -math.inf), neginf, above)
    return where(isnan(x), nan, below)


# --- integers ------------------------------------------------------------------------------------
def bitwise_and(a: Tensor, b: Tensor) -> Tensor:
    """The bits set in both; of bools, both."""
    return apply(ops.AND if are_bools(a, b) else ops.BITWISE_AND, a, b)


def bitwise_or(a: Tensor, b: Tensor) -> Tensor:
    """The bits set in at least one; of bools, at least one."""
    return apply(ops.OR if are_bools(a, b) else ops.BITWISE_OR, a, b)


def bitwise_xor(a: Tensor, b: Tensor) -> Tensor:
    """The bits set in exactly one; of bools, exactly one."""
    return apply(ops.XOR if are_bools(a, b) else ops.BITWISE_XOR, a, b)


def bitwise_invert(x: Tensor) -> Tensor:
    """The bits not set; of a bool, the contrary."""
    return apply(ops.NOT if are_bools(x) else ops.BITWISE_INVERT, x)


def bitwise_left_shift(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.BITWISE_LEFT_SHIFT, a, b)


def bitwise_right_shift(a: Tensor, b: Tensor) -> Tensor:
    return apply(ops.BITWISE_RIGHT_SHIFT, a, b)
