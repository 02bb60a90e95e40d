"""JAX arrays to and from NumPy, so that no backend knows another."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """Return the values of an array; bfloat16 keeps its dtype (ml_dtypes)."""
    return np.asarray(x)


def from_numpy(x: np.ndarray[Any, Any]) -> jax.Array:
    """Return a NumPy array as jax's; 64 bits need `precision`."""
    return jnp.asarray(x)


def precision(dtype: str) -> AbstractContextManager[Any]:
    """Return the mode that keeps a dtype: jax makes 32 bits of 64 by default."""
    return jax.enable_x64(True) if dtype in ("float64", "int64") else nullcontext()


def is_traced(x: Any) -> bool:
    """Return whether an array's values are known at run time only."""
    return isinstance(x, jax.core.Tracer)


def dtype(name: str) -> Any:
    """Return jax's dtype of an IR name."""
    return jnp.dtype(name)


def weak(value: Any, dtype: Any) -> Any:
    """Return a scalar that does not promote the tensor it meets."""
    if isinstance(value, bool | int | float) or getattr(value, "weak_type", False):
        return value
    return value.astype(dtype)
