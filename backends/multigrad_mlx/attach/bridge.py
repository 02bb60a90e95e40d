"""MLX arrays to and from NumPy and DLPack, so that no backend knows another."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from multigrad.backend import SharedBuffer, UnsupportedOp, as_numpy_dtype, dtype_name

NO_FLOAT8 = "mlx 0.32 has no such dtype"
HALF = as_numpy_dtype("bfloat16")


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """Return the values of an array; bfloat16 keeps its dtype (ml_dtypes)."""
    if x.dtype == mx.bfloat16:
        return np.asarray(x.view(mx.uint16)).view(HALF)
    return np.asarray(x)


def from_numpy(x: np.ndarray[Any, Any]) -> mx.array:
    """Return a NumPy array as MLX's, which makes float32 of float64 unless it is told."""
    x = np.ascontiguousarray(x).reshape(np.shape(x))
    if x.dtype == HALF:
        return mx.array(x.view(np.uint16)).view(mx.bfloat16)
    if x.dtype.kind == "c":
        return mx.array(x)
    return mx.array(x, dtype(x.dtype.name))


def precision(dtype: str) -> AbstractContextManager[Any]:
    """Return the mode that has a dtype: float64 is the CPU's alone."""
    return mx.stream(mx.cpu) if dtype == "float64" else nullcontext()


def dtype(name: str) -> Any:
    """Return MLX's dtype of an IR name.

    Raises:
        UnsupportedOp: it has none.
    """
    if name.startswith("float8"):
        raise UnsupportedOp(f"a cast to {name} is not available on mlx: {NO_FLOAT8}")
    return getattr(mx, "bool_" if name == "bool" else name)


def weak(value: Any, dtype: Any) -> Any:
    """Return a scalar that does not promote the array it meets."""
    return value if isinstance(value, bool | int | float) else value.astype(dtype)


def lend(x: mx.array) -> SharedBuffer:
    """Return an array for other frameworks to read, in place: its memory is the CPU's too."""
    x = mx.contiguous(x)
    mx.eval(x)
    return SharedBuffer(dtype_name(x.dtype), x.shape, partial(to_numpy, x))


def borrow(lent: SharedBuffer, own: bool = False) -> mx.array:
    """Copy a buffer lent by another framework: MLX has no array on foreign memory."""
    return from_numpy(lent.array())
