"""NumPy helpers for the reference functions of ops: 16-bit floats, functions of SciPy, and
differences between releases of NumPy, each behind one name (docs/versions.md lists them).

Elementwise arithmetic rounds 16-bit values after each op, as the frameworks do; composite functions
compute in float32 and round once.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ..ir.op import FLOAT8
from ..support.installed import import_extra

Array = Any  # numpy.ndarray or a NumPy scalar
Axis = int | tuple[int, ...] | None
# Prepared zeros save a ufunc 0.3 us.
ZEROS = {dtype: np.zeros((), dtype) for dtype in map(np.dtype, ("float32", "float64"))}


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


def from_scipy(name: str, module: str = "special") -> Any:
    """Return a function of SciPy's, or raise BackendNotFound if it is not installed."""
    who_needs_it = f"{name} is SciPy's, for NumPy arrays"
    return getattr(import_extra(f"scipy.{module}", "scipy", who_needs_it), name)


def late_from_scipy(name: str) -> Callable[..., Array]:
    """Return a function of scipy.special as an op; SciPy is imported when it is first called."""

    def call(x: Array) -> Array:
        return from_scipy(name)(x)

    call.__name__ = call.__qualname__ = name
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
