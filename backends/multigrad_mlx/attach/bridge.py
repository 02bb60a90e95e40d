"""Conversion of MLX arrays to and from NumPy and DLPack, so that no backend knows another."""

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
    """Return the values of an array; bfloat16 stays bfloat16 (ml_dtypes)."""
    if x.dtype == mx.bfloat16:
        return np.asarray(x.view(mx.uint16)).view(HALF)
    return np.asarray(x)


def from_numpy(x: np.ndarray[Any, Any]) -> mx.array:
    """Return a NumPy array as MLX's, of the same dtype."""
    # ascontiguousarray gives a 0-d array an axis.
    x = np.ascontiguousarray(x).reshape(np.shape(x))
    if x.dtype == HALF:
        return mx.array(x.view(np.uint16)).view(mx.bfloat16)
    if x.dtype.kind == "c":
        return mx.array(x)
    # Without a dtype MLX makes float32 of float64.
    return mx.array(x, dtype(x.dtype.name))


def precision(dtype: str) -> AbstractContextManager[Any]:
    """Return a context that computes in a dtype: only the CPU has float64."""
    return mx.stream(mx.cpu) if dtype == "float64" else nullcontext()


def dtype(name: str) -> Any:
    """Return MLX's dtype of an IR name.

    Raises:
        UnsupportedOp: there is none.
    """
    if name.startswith("float8"):
        raise UnsupportedOp(f"a cast to {name} is not available on mlx: {NO_FLOAT8}")
    return getattr(mx, "bool_" if name == "bool" else name)


def weak(value: Any, dtype: Any) -> Any:
    """Return a scalar that does not promote the array that it meets."""
    return value if isinstance(value, bool | int | float) else value.astype(dtype)


def lend(x: mx.array) -> SharedBuffer:
    """Return a buffer on an array for other frameworks; its memory is the CPU's, too."""
    x = mx.contiguous(x)
    # The array is lazy: it has no memory before it is computed.
    mx.eval(x)
    return SharedBuffer(dtype_name(x.dtype), x.shape, partial(to_numpy, x))


def borrow(lent: SharedBuffer, own: bool = False) -> mx.array:
    """Return a copy of a buffer that another framework lent: MLX cannot use its memory."""
    return from_numpy(lent.array())
