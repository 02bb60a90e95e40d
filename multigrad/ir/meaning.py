"""What each elementwise op means, in NumPy: the definition that every backend is compared with.

16-bit values: elementwise arithmetic rounds after each op as the frameworks do; composite
functions compute in float32 and round once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any  # numpy.ndarray or a NumPy scalar


def is_16_bit(x: Array) -> bool:
    """Return whether x is float16 or bfloat16."""
    return x.dtype.itemsize == 2 and x.dtype.kind in "fV"


def widened(function: Callable[..., Array]) -> Callable[..., Array]:
    """Compute 16-bit floats in float32 and round once."""

    @functools.wraps(function)
    def call(x: Array, *args: Any, **attrs: Any) -> Array:
        x = np.asarray(x)
        if is_16_bit(x):
            wide = (a.astype(np.float32) if hasattr(a, "astype") else a for a in args)
            return function(x.astype(np.float32), *wide, **attrs).astype(x.dtype)
        return function(x, *args, **attrs)

    return call


def wide(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return a NumPy ufunc as an op: computed in float32 for 16-bit floats, rounded once."""

    def call(x: Array, *args: Array) -> Array:
        return function(x, *args)

    call.__name__ = call.__qualname__ = function.__name__
    return widened(call)


def sign(x: Array) -> Array:
    """-1, 0 or 1; NaN stays NaN."""
    return np.sign(x)


def rsqrt(x: Array) -> Array:
    return x.dtype.type(1) / np.sqrt(x)


def reciprocal(x: Array) -> Array:
    return x.dtype.type(1) / x


floor_divide, remainder, fmod = wide(np.floor_divide), wide(np.remainder), wide(np.fmod)
fmax, fmin, copysign = wide(np.fmax), wide(np.fmin), wide(np.copysign)
hypot, atan2, cbrt = wide(np.hypot), wide(np.arctan2), wide(np.cbrt)
exp2, log2, log10, logaddexp = wide(np.exp2), wide(np.log2), wide(np.log10), wide(np.logaddexp)
tan, asin, acos = wide(np.tan), wide(np.arcsin), wide(np.arccos)
sinh, cosh, tanh = wide(np.sinh), wide(np.cosh), wide(np.tanh)
asinh, acosh, atanh = wide(np.arcsinh), wide(np.arccosh), wide(np.arctanh)
deg2rad, rad2deg = wide(np.deg2rad), wide(np.rad2deg)


@widened
def frac(x: Array) -> Array:
    return x - np.trunc(x)


@widened
def lerp(a: Array, b: Array, weight: Array) -> Array:
    return a + weight * (b - a)


@widened
def xlogy(a: Array, b: Array) -> Array:
    return np.where((a == 0) & ~np.isnan(b), a.dtype.type(0), a * np.log(b))


@widened
def xlog1py(a: Array, b: Array) -> Array:
    return np.where((a == 0) & ~np.isnan(b), a.dtype.type(0), a * np.log1p(b))


@widened
def sinc(x: Array) -> Array:
    angle = x.dtype.type(np.pi) * x
    return np.where(x == 0, x.dtype.type(1), np.sin(angle) / np.where(x == 0, 1, angle))


def from_scipy(name: str) -> Callable[..., Array]:
    """Return a function of scipy.special as an op; SciPy is imported when it is first called."""

    def call(x: Array) -> Array:
        from scipy import special

        return getattr(special, name)(x)

    call.__name__ = call.__qualname__ = name
    return widened(call)


erf, erfc, erfinv = from_scipy("erf"), from_scipy("erfc"), from_scipy("erfinv")
ndtr, ndtri, log_ndtr = from_scipy("ndtr"), from_scipy("ndtri"), from_scipy("log_ndtr")


@widened
def lgamma(x: Array) -> Array:
    from scipy.special import gammaln

    return np.where(np.isinf(x), np.abs(x), gammaln(x))  # SciPy's is -inf at -inf


@widened
def digamma(x: Array) -> Array:
    from scipy.special import psi

    # Reflected here, by the distance to the pole: SciPy 1.17 loses every digit near -1.
    below = x < 0
    right = psi(np.where(below, 1 - x, x))
    with np.errstate(divide="ignore", invalid="ignore"):
        left = right - np.pi / np.tan(np.pi * (x - np.round(x)))
    left = np.where(x == np.floor(x), np.nan, left)
    return np.where(below, left, right).astype(x.dtype)


@widened
def polygamma(x: Array, *, n: int) -> Array:
    """(-1)^(n + 1) n! zeta(n + 1, x)."""
    from scipy.special import gamma, zeta

    # SciPy's loop takes a step per unit up to zero.
    values = gamma(n + 1.0) * zeta(n + 1, np.where(x > 0, x, 1))
    beyond = np.where(x == 0, np.inf, np.nan)
    return ((-1) ** (n + 1) * np.where(x > 0, values, beyond)).astype(x.dtype)


def nan_to_num(
    x: Array, *, nan: float, posinf: float | None, neginf: float | None
) -> Array:  # fmt: skip
    x = np.asarray(x)
    # In 16 bits NumPy's own has no bfloat16, and the largest float32 would be an infinity again.
    largest = np.nextafter(x.dtype.type(np.inf), x.dtype.type(0))
    above = largest if posinf is None else posinf
    below = -largest if neginf is None else neginf
    finite = np.where(x == np.inf, above, np.where(x == -np.inf, below, x))
    return np.where(np.isnan(x), nan, finite).astype(x.dtype)


def clip(x: Array, min: Array, max: Array) -> Array:
    """NaN in x, min or max gives NaN; where min > max the result is max."""
    return np.minimum(np.maximum(x, min), max)


def cast(x: Array, *, dtype: Any) -> Array:
    x, target = np.asarray(x), as_numpy_dtype(dtype)
    if target == np.int32 and x.dtype.kind in "fV":
        return to_int32(x)
    return x.astype(target)


def to_int32(x: Array) -> Array:
    """Truncated; limited to the range of int32; 0 for NaN. NumPy leaves the last two to the processor."""
    whole = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0)
    return np.clip(whole, -(2.0**31), 2.0**31 - 1).astype(np.int32)


def as_numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the NumPy dtype, bfloat16 included."""
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def full_like(x: Array, value: Array, *, dtype: Any = None) -> Array:
    return np.full_like(x, value, dtype=x.dtype if dtype is None else as_numpy_dtype(dtype))


def stop_gradient(x: Array) -> Array:
    return x
