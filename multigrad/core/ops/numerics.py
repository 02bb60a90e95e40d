"""NumPy helpers for the reference functions of ops: 16-bit floats, differences between
releases of NumPy, each behind one name (docs/versions.md lists them), and the error functions.

Elementwise arithmetic rounds 16-bit values after each op, as the frameworks do; composite functions
compute in float32 and round once.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ..ir.op import FLOAT8

Array = Any  # numpy.ndarray or a NumPy scalar
Axis = int | tuple[int, ...] | None
# Prepared zeros save a ufunc 0.3 us.
ZEROS = {dtype: np.zeros((), dtype) for dtype in map(np.dtype, ("float32", "float64"))}


def evaluate_polynomial(coefficients: Sequence[float], x: Array) -> Array:
    """Evaluate by Horner's scheme, highest power first."""
    first, second, *lower = coefficients
    # Operators that work in place, where the framework has them: no array for each step.
    total = x * first
    total += second
    for coefficient in lower:
        total *= x
        total += coefficient
    return total


def zero_like(x: Array) -> Array:
    zero = ZEROS.get(x.dtype)
    return x.dtype.type(0) if zero is None else zero


# NumPy takes longer for the name of a dtype than for a small array.
@functools.lru_cache(64)
def name_of(dtype: Any) -> str:
    return dtype.name


def is_16_bit(x: Array) -> bool:
    # bfloat16 of ml_dtypes has the kind V.
    return x.dtype.itemsize == 2 and x.dtype.kind in "fV"


def wider(x: Array) -> Array:
    """Return 16-bit floats in float32, which is exact, and others unchanged."""
    return x.astype(np.float32) if is_16_bit(x) else x


def widened(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return a function that computes 16-bit floats in float32 and rounds once."""

    @functools.wraps(function)
    def call(x: Array, *args: Any, **attrs: Any) -> Array:
        x = np.asarray(x)
        if x.dtype.itemsize == 2 and is_16_bit(x):
            wide_args = (a.astype(np.float32) if hasattr(a, "astype") else a for a in args)
            return function(x.astype(np.float32), *wide_args, **attrs).astype(x.dtype)
        return function(x, *args, **attrs)

    return call


def wide(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return a NumPy ufunc as an op: computed in float32 for 16-bit floats, rounded once."""

    def call(x: Array, *args: Array) -> Array:
        return function(x, *args)

    call.__name__ = call.__qualname__ = function.__name__
    return widened(call)


def as_numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the NumPy dtype of a name, also of one that ml_dtypes adds."""
    if isinstance(dtype, np.dtype):
        return dtype
    if dtype in ("bfloat16", *FLOAT8):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, dtype))
    return np.dtype(dtype)


RELEASE = tuple(map(int, np.__version__.split(".")[:2]))


def ignoring_warnings() -> AbstractContextManager[object]:
    return warnings.catch_warnings(action="ignore")


def _reshape(x: Any, shape: Any) -> Any:
    # Before NumPy 2.1 `shape` has another name.
    return np.reshape(x, shape)


def _vecdot(a: Any, b: Any) -> Any:
    # np.vecdot is new in NumPy 2.0.
    return np.stack([x.dot(y) for x, y in zip(a, b, strict=True)])


reshape: Any = np.reshape if RELEASE >= (2, 1) else _reshape
vecdot: Any = getattr(np, "vecdot", _vecdot)


# --- error functions, in float64, rounded once ----------------------------------------------------
# Our own, so that the core needs no SciPy: within 4 eps of the exact result.
ROOT_HALF, ROOT_PI = math.sqrt(0.5), math.sqrt(math.pi)
BLOCK = 16_384  # numbers whose temporaries stay in a processor's cache
# (1 + 2 a) exp(a^2) erfc(a) for a from 0 on, by powers of (a - 4) / (a + 4): Schonfelder, Chebyshev
# expansions for the error and related functions, 1978. The coefficients were computed with mpmath.
ERFCX = (
    1.2329951186255526, -0.1396211168405625, 0.015379652102620026, 0.0680970542546904,
    -0.10103906603632413, 0.09373283499843826, -0.06633036581166812, 0.03716751553592911,
    -0.016197734065728945, 0.005031969992669933, -0.0007577732210512849, -0.0001992567757633648,
    0.00015062131406268513, -2.4398944545280832e-05, -1.1220772697788498e-05,
    5.709206053072183e-06, 2.9094470866632674e-07, -8.249198427508354e-07, 7.888177117406594e-08,
    1.1009737295274889e-07, -2.1868462576141457e-08, -1.4709550868669278e-08,
    3.950879254166685e-09, 1.7903326159489847e-09, -5.377133821031794e-10, -1.374652989001164e-10,
    4.180821739675544e-11,
)  # fmt: skip
# erf(x) / x by powers of x^2, up to 1.
ERF = [2 / ROOT_PI / ((-1) ** k * math.factorial(k) * (2 * k + 1)) for k in range(20)]


def in_float64(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return a function of float arrays, computed in float64 by blocks, rounded once."""

    @functools.wraps(function)
    def call(x: Array, **attrs: int) -> Array:
        x = np.asarray(x)
        numbers = x.astype(np.float64).ravel()
        with np.errstate(all="ignore"):
            for start in range(0, numbers.size, BLOCK):
                numbers[start : start + BLOCK] = function(numbers[start : start + BLOCK], **attrs)
            return numbers.reshape(x.shape).astype(x.dtype)[()]

    return call


def scaled_erfc(a: Array) -> Array:
    """Return exp(a^2) erfc(a), for a from 0 on."""
    t = np.where(np.isinf(a), 1.0, (a - 4) / (a + 4))
    return evaluate_polynomial(ERFCX[::-1], t) / (1 + 2 * a)


def exp_of_square(x: Array) -> Array:
    """Return exp(-x^2); rounding x^2 would cost a relative error of x^2 eps."""
    x = np.clip(x, -40, 40)  # 0 from 28 on
    high = x.astype(np.float32).astype(np.float64)
    return np.exp(-high * high) * np.exp((high - x) * (high + x))


def erf_near_zero(x: Array) -> Array:
    x = np.clip(x, -1, 1)
    return x * evaluate_polynomial(ERF[::-1], x * x)


@in_float64
def erf(x: Array) -> Array:
    size = np.abs(x)
    far = np.copysign(1 - scaled_erfc(size) * exp_of_square(x), x)
    return np.where(size < 1, erf_near_zero(x), far)


def complement(x: Array) -> Array:
    """Return erfc(x) of float64."""
    size = np.abs(x)
    tail = scaled_erfc(size) * exp_of_square(x)
    return np.where(size < 0.5, 1 - erf_near_zero(x), np.where(x < 0, 2 - tail, tail))


erfc = in_float64(complement)
