"""JAX arrays to and from NumPy, so that no backend knows another."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """Return the values of an array; bfloat16 keeps its dtype (ml_dtypes)."""
    return np.asarray(x)


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
